"""Tool calls in four dialects: what is written is read back, and hostile text is malformed or text, never a guess or a crash."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records import Dialect as DialectName
from rollbook.records import ToolSchema
from rollbook.rollouts.arguments import misfit, only_text
from rollbook.rollouts.dialects import Made, Malformed, Spoken, dialect

TOOL = ToolSchema(name="run", description="Runs code.", parameters={"type": "object", "properties": {"code": {"type": "string"}},
                                                                    "required": ["code"], "additionalProperties": False})
NAMES: tuple[DialectName, ...] = get_args(DialectName)
JSON = ("hermes", "llama3", "mistral")
WRITTEN = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls),
    "llama3": lambda calls: "; ".join(json.dumps({"name": n, "parameters": a}) for n, a in calls),
    "mistral": lambda calls: f"[TOOL_CALLS] {json.dumps([{'name': n, 'arguments': a} for n, a in calls])}"}
MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```run", "```", "\n", "{", "}", "[", "]",
         '"', '{"name": "run", "arguments": {"code": "1"}}', '{"name": "run", "parameters": {}}', "<think>", "</think>", ";", ",",
         "run", "\\ud800", "NaN", "1e999", "\x00", "é"]


def read(name: DialectName, text: str) -> Spoken:
    return dialect(name).parse(text, (TOOL,))


plain = st.recursive(st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.floats(allow_nan=False, allow_infinity=False)
                     | st.text(st.characters(exclude_categories=("Cs",))),
                     lambda inner: st.lists(inner, max_size=3)
                     | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=3), max_leaves=8)
arguments = st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), plain, max_size=3)


@pytest.mark.parametrize("name", JSON)
@settings(max_examples=60, deadline=None)
@given(calls=st.lists(arguments, min_size=1, max_size=3))
def test_every_call_that_is_written_is_read_back(name: DialectName, calls: list[dict[str, Any]]) -> None:
    spoken = read(name, WRITTEN[name]([("run", one) for one in calls]))
    assert [(one.name, one.arguments) for one in spoken.calls if isinstance(one, Made)] == [("run", one) for one in calls]
    assert len(spoken.calls) == len(calls) and spoken.text == ""


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="`\r")), max_size=3))
def test_every_block_that_is_written_is_read_back(bodies: list[str]) -> None:
    spoken = read("fenced", "\n".join(f"```run\n{body}\n```" for body in bodies))
    assert [one.arguments for one in spoken.calls if isinstance(one, Made)] == bodies and len(spoken.calls) == len(bodies)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=12))
def test_no_text_raises_and_calls_stand_in_order_within_it(name: DialectName, parts: list[str]) -> None:
    text = "".join(parts)
    spoken = read(name, text)
    assert 0 <= spoken.reasoning_end <= len(text)
    places = [place for call in spoken.calls for place in (call.start, call.end)]
    assert places == sorted(places) and all(spoken.reasoning_end <= place <= len(text) for place in places)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("value", ['{"code": NaN}', '{"code": Infinity}', '{"code": 1e999}', '{"code": "\\ud800"}',
                                   '{"\\udfff": 1}',
                                   '{"code": 1, "code": 2}', '{"code": ' + "[" * 100 + "]" * 100 + "}",
                                   '{"code": ' + "[" * 100_000, '{"code": ' + "9" * 5000 + "}", "[1]", '"text"', "null",
                                   "{'code': 1}",
                                   '{"code": 1,}'])
def test_arguments_that_no_record_could_hold_are_malformed(name: DialectName, value: str) -> None:
    key = "parameters" if name == "llama3" else "arguments"
    call = f'{{"name": "run", "{key}": {value}}}'
    text = {"hermes": f"<tool_call>{call}</tool_call>", "llama3": call, "mistral": f"[TOOL_CALLS] [{call}]"}[name]
    assert [type(one) for one in read(name, text).calls] == [Malformed]


@pytest.mark.parametrize(("name", "text"), [
    ("hermes", '<tool_call>{"name": "run", "arguments": {}}'), ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'), ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {}, "then": 1}</tool_call>'),
    ("hermes", '<tool_call>{"name": "run", "arguments": {}} more</tool_call>'), ("hermes", "<tool_call></tool_call>"),
    ("llama3", '{"name": "run", "parameters": {}} and more'), ("llama3", '{"name": "run", "parameters": {}'),
    ("llama3", "<|python_tag|>print(1)"), ("mistral", '[TOOL_CALLS] [{"name": "run", "arguments": {}}'),
    ("mistral", "[TOOL_CALLS]run[ARGS]{"), ("mistral", "[TOOL_CALLS]"), ("mistral", "[TOOL_CALLS]a b[ARGS]{}"),
    ("fenced", "```run\nprint(1)"), ("fenced", "````run\nprint(1)\n```")])
def test_a_broken_call_is_malformed(name: DialectName, text: str) -> None:
    calls = read(name, text).calls
    assert calls and isinstance(calls[-1], Malformed)


@pytest.mark.parametrize(("name", "text"), [
    ("hermes", 'I could write {"name": "run", "arguments": {}}.'), ("llama3", '{"answer": 4}'), ("llama3", "the answer is 4"),
    ("mistral", 'the list [{"name": "run", "arguments": {}}]'), ("fenced", "```text\nprint(1)\n```"),
    ("fenced", "use ```run in a line"),
    *((name, "<think><tool_call>{}</tool_call>\n```run\n1\n```\n</think>4") for name in NAMES),
    *((name, '<think>[TOOL_CALLS]<tool_call>{"name"') for name in NAMES)])
def test_what_is_no_call_is_text(name: DialectName, text: str) -> None:
    assert read(name, text).calls == ()


def test_a_closing_mark_inside_a_string_does_not_close_the_call() -> None:
    text = '<tool_call>{"name": "run", "arguments": {"code": "</tool_call><tool_call>"}}</tool_call>after'
    spoken = read("hermes", text)
    assert [one.arguments for one in spoken.calls if isinstance(one, Made)] == [{"code": "</tool_call><tool_call>"}]
    assert spoken.text == "after"


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    text = 'a<tool_call>{"name": </tool_call>b<tool_call>{"name": "run", "arguments": {}}</tool_call>c'
    assert [type(one) for one in read("hermes", text).calls] == [Malformed, Made]
    assert read("hermes", text).text == "abc"


def test_a_longer_fence_holds_a_shorter_one() -> None:
    calls = read("fenced", "````run\n```\nx\n```\n````").calls
    assert [one.arguments for one in calls if isinstance(one, Made)] == ["```\nx\n```"]


def test_the_newer_spelling_of_mistral_is_read_as_well() -> None:
    calls = read("mistral", '[TOOL_CALLS]run[ARGS]{"code": "1"}[TOOL_CALLS]run{"code": "2"}').calls
    assert [one.arguments for one in calls if isinstance(one, Made)] == [{"code": "1"}, {"code": "2"}]


def test_reasoning_whose_opening_stands_in_the_prompt_ends_with_its_closing_mark() -> None:
    spoken = read("hermes", 'I will <tool_call>{}</tool_call></think>4')
    assert spoken.calls == () and spoken.text == "4"


@pytest.mark.parametrize(("schema", "value", "fits"), [
    ({"type": "integer"}, True, False), ({"type": "integer"}, 2.0, True), ({"type": "integer"}, 2.5, False),
    ({"type": "number"}, 1, True), ({"type": "boolean"}, 1, False), ({"type": ["string", "null"]}, None, True),
    ({"enum": ["a"]}, "b", False), ({"type": "array", "items": {"type": "string"}}, ["a", 1], False),
    ({"type": "array", "maxItems": 1}, [1, 2], False), ({"type": "string", "minLength": 1}, "", False),
    ({"type": "number", "maximum": 3}, 4, False), ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, False),
    ({"type": "object", "required": ["a"]}, {}, False), ({"type": "object", "additionalProperties": False}, {"a": 1}, False),
    ({"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}}}, {"a": {}}, False),
    ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}, False)])
def test_arguments_fit_their_schema_or_it_is_said_where_not(schema: dict[str, Any], value: Any, fits: bool) -> None:
    assert (misfit(value, schema) is None) == fits


def test_only_a_tool_of_one_text_takes_a_block() -> None:
    assert only_text(TOOL) == "code"
    assert only_text(ToolSchema(name="two", description="", parameters={"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]})) is None
