"""Rows that are none are unreadable one by one, and never another kind of error."""

import json

import pytest

from rollbook.rollouts.conversations import Unreadable, read_rows

CALL = {"name": "f", "arguments": {}}


def row(*, message=None, tools=None):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", **(message or {})}]
    return {"messages": said, **({} if tools is None else {"tools": tools})}


@pytest.mark.parametrize("wrong", [
    row(message={"role": []}), row(message={"tool_calls": 5}), row(message={"tool_calls": [{"name": "f", "args": {"x": 1}}]}),
    row(message={"tool_calls": [{**CALL, "arguments": []}]}), row(message={"tool_calls": [{**CALL, "arguments": 0}]}),
    row(message={"tool_calls": [{**CALL, "arguments": "[" * 200_000}]}), row(tools=[{"name": "f", "parameters": [1]}]),
    row(tools=[{"name": "f", "parameters": "7"}])])
def test_a_row_of_wrong_types_is_told_and_the_others_are_read(wrong):
    rows, told = read_rows(json.dumps([row(), wrong]).encode(), ".json", pairs=False)
    assert (len(rows), len(told)) == (1, 1)


def test_a_file_nested_too_deep_is_unreadable():
    with pytest.raises(Unreadable):
        read_rows(b"[" * 200_000, ".json", pairs=False)


def test_a_line_may_hold_separators_that_are_none_of_json_lines():
    text = json.dumps(row(message={"content": "a\u2028b\u0085c"}), ensure_ascii=False)
    rows, told = read_rows((text + "\n").encode(), ".jsonl", pairs=False)
    assert (len(rows), told) == (1, {})
