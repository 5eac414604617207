"""Conversations of a file: tools and calls as at serving time, values of every type, no null that was not there."""

import dataclasses
import datetime
import decimal
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.audit.ownership import owned
from rollbook.models.tokenizer import byte_tokenizer
from rollbook.records import Action, Message, ToolCall, ToolSchema
from rollbook.records.recipe import Conversations
from rollbook.rollouts.conversations import Unreadable, read_rows
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.given import CUT, SAME, TOO_LONG, given
from rollbook.rollouts.rendering import Renderer

TOKENIZER = byte_tokenizer()
STAGE = Conversations(policy="start", path="x.jsonl", form="demonstrations", dialect="hermes", max_tokens=4000, too_long="drop")
PAIRS = Conversations(policy="start", path="x.jsonl", form="pairs", dialect="hermes", max_tokens=200, too_long="drop", apart=0.5)


def tool(name, **kinds):
    return {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}, "required": list(kinds)}}}


WEATHER, REMIND = tool("weather", city="string", days="integer"), tool("remind", at="number", loud="boolean")


def call(name, arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(arguments, name="weather", tools=(WEATHER, REMIND)):
    return {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Please."},
                         {"role": "assistant", "content": None, "tool_calls": [call(name, arguments)]},
                         {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
                         {"role": "assistant", "content": "It is mild."}], "tools": list(tools)}


def answering(call_id, role="tool"):
    row = chat({"city": "Oslo", "days": 3})
    row["messages"][3] = {"role": role, "tool_call_id": call_id, "content": "18 degrees"}
    return row


HI = {"prompt": "Hi", "completion": "Hello"}
ROWS = [chat({"city": "Oslo", "days": 3}), chat({"at": 7.5, "loud": True}, name="remind"), chat({"city": "Graz", "days": 1})]


def as_lines(rows):
    return "\n".join(map(json.dumps, rows)).encode()


def as_parquet(rows):
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), target)
    return target.getvalue()


def arguments_of(rows):
    return [turn.calls[0].arguments for row in rows for turn in row.turns if turn.calls]


@pytest.mark.parametrize(("suffix", "data"), [(".jsonl", as_lines(ROWS)), (".json", json.dumps(ROWS).encode()),
                                              (".parquet", as_parquet(ROWS))])
def test_arguments_and_schemas_come_as_they_were_written_without_a_null(suffix, data):
    rows, wrong = read_rows(data, suffix, pairs=False)
    wanted = [{"city": "Oslo", "days": 3}, {"at": 7.5, "loud": True}, {"city": "Graz", "days": 1}]
    assert not wrong and arguments_of(rows) == wanted
    for row in rows:
        assert [one.parameters for one in row.tools] == [one["function"]["parameters"] for one in (WEATHER, REMIND)]
    shown = given(data, suffix, STAGE, TOKENIZER, "ab" * 32).demonstrations
    assert len(shown) == 3 and not any("null" in message.content for one in shown for message in one.messages)


def test_one_argument_may_have_several_types_in_a_file_and_a_null_on_purpose_stays():
    several = [{"city": value} for value in ("Oslo", 4, 4.5, True, None, ["a", 1], {"deep": {"x": None}})]
    for suffix, data in ((".jsonl", as_lines([chat(one) for one in several])),
                         (".parquet", as_parquet([chat(json.dumps(one)) for one in several]))):
        rows, wrong = read_rows(data, suffix, pairs=False)
        assert not wrong and arguments_of(rows) == several
        assert [type(one["city"]) for one in arguments_of(rows)] == [type(one["city"]) for one in several]


def test_a_conversation_has_the_very_tokens_of_serving_and_only_the_policys_turns_are_the_policys():
    one = given(as_lines(ROWS[:1]), ".jsonl", STAGE, TOKENIZER, "ab" * 32).demonstrations[0]
    schemas = [ToolSchema(**one["function"]) for one in (WEATHER, REMIND)]
    renderer = Renderer(TOKENIZER, dialect("hermes"), announces=True)
    asked = renderer.announced((Message(role="system", content="Be kind."), Message(role="user", content="Please.")), schemas)
    prompt = TOKENIZER.prompt(asked)
    assert one.token_ids[:len(prompt)] == prompt == one.token_ids[:one.owners[0].length]
    said = Action(calls=(ToolCall(id="c1", name="weather", arguments={"city": "Oslo", "days": 3}),))
    written = dialect("hermes").write(said, schemas)
    found = owned(one.messages, one.token_ids, TOKENIZER)
    assert [TOKENIZER.decode(one.token_ids[a:b]) for a, b in found.spans] == [written, "It is mild."]
    at, mine = 0, []
    for span in one.owners:
        mine += [(at, at + span.length)] if span.owner == "policy" else []
        at += span.length
    assert tuple(mine) == found.spans and "tool" in {span.owner for span in one.owners}


def test_a_call_that_its_dialect_cannot_write_is_refused():
    fenced = dataclasses.replace(STAGE, dialect="fenced")
    run = tool("run", code="string")
    good, bad = chat({"code": "print(1)"}, "run", [run]), chat({"code": "print(1)", "wait": 3}, "run", [run])
    made = given(as_lines([good, bad]), ".jsonl", fenced, TOKENIZER, "ab" * 32)
    assert len(made.demonstrations) == 1 and "cannot write its calls" in made.wrong["row 1"]


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_a_call_is_read_back_from_what_is_learnt_in_the_dialects_of_json(name):
    made = given(as_lines(ROWS[:2]), ".jsonl", dataclasses.replace(STAGE, dialect=name), TOKENIZER, "ab" * 32)
    assert not made.wrong
    for one, row in zip(made.demonstrations, read_rows(as_lines(ROWS[:2]), ".jsonl", pairs=False)[0], strict=True):
        spoken = next(message.content for message in one.messages if message.role == "assistant")
        read = dialect(name).parse(spoken, row.tools).calls
        assert [(made.name, dict(made.arguments)) for made in read] == [(c.name, dict(c.arguments)) for c in row.turns[2].calls]


def test_what_is_too_long_is_left_out_or_cut_behind_a_turn_and_named():
    long = dict(chat({"city": "Oslo", "days": 3}), id="long one")
    short = {"id": "short", "prompt": "Hi", "completion": "Hello"}
    data = as_lines([long, short])
    whole = given(data, ".jsonl", STAGE, TOKENIZER, "ab" * 32).demonstrations[0]
    room = len(whole.token_ids) - 1
    dropped = given(data, ".jsonl", dataclasses.replace(STAGE, max_tokens=room), TOKENIZER, "ab" * 32)
    assert dropped.left == {TOO_LONG: ("long one",)} and [one.task for one in dropped.demonstrations] == ["given:short"]
    cut = given(data, ".jsonl", dataclasses.replace(STAGE, max_tokens=room, too_long="cut"), TOKENIZER, "ab" * 32)
    assert cut.left == {CUT: ("long one",)} and cut.rows == 2 and len(cut.demonstrations) == 2
    first = cut.demonstrations[0]
    assert whole.token_ids[:len(first.token_ids)] == first.token_ids and first.owners[-1].owner == "policy"
    assert len(owned(first.messages, first.token_ids, TOKENIZER).spans) == 1
    nothing = given(data, ".jsonl", dataclasses.replace(STAGE, max_tokens=4, too_long="cut"), TOKENIZER, "ab" * 32)
    assert nothing.left == {TOO_LONG: ("long one", "short")} and not nothing.demonstrations


def test_pairs_are_rankings_with_the_last_share_kept_apart_and_equal_answers_are_no_pair():
    rows = [{"prompt": "2+2?", "chosen": "4", "rejected": "5"},
            {"prompt": [{"role": "user", "content": "3+3?"}], "chosen": [{"role": "assistant", "content": "6"}], "rejected": "5"},
            {"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
             "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]},
            {"id": "same", "prompt": "x", "chosen": "y", "rejected": "y"},
            {"id": "far", "prompt": "x", "chosen": "y" * 300, "rejected": "n"}]
    made = given(as_lines(rows), ".jsonl", PAIRS, TOKENIZER, "ab" * 32)
    assert made.left == {SAME: ("same",), TOO_LONG: ("far",)} and [one.heldout for one in made.rankings] == [False, True, True]
    stop = min(TOKENIZER.stop_ids)
    for one, (asked, good, bad) in zip(made.rankings, (("2+2?", "4", "5"), ("3+3?", "6", "5"), ("q", "a", "b")), strict=True):
        assert one.prompt_ids == TOKENIZER.prompt((Message(role="user", content=asked),))
        assert [c.token_ids for c in one.candidates] == [(*TOKENIZER.encode(text), stop) for text in (good, bad)]
        assert one.scores == (1.0, 0.0) and one.labeler == "file:" + "ab" * 8
    cut = given(as_lines(rows), ".jsonl", dataclasses.replace(PAIRS, too_long="cut"), TOKENIZER, "ab" * 32)
    assert cut.left[CUT] == ("far",)
    assert max(len(one.prompt_ids) + len(c.token_ids) for one in cut.rankings for c in one.candidates) == PAIRS.max_tokens


@pytest.mark.parametrize(("row", "why"), [
    ({"messages": [{"role": "assistant", "content": "x"}]}, "does not begin with what the policy is asked"),
    ({"messages": [{"role": "user", "content": "x"}]}, "nothing to imitate"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "a role of"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "is a text, got list"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}, "says nothing"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<|im_end|>y"}]}, "special token"),
    ({"messages": [{"role": "user", "content": "<|im_start|>system"}, {"role": "assistant", "content": "y"}]}, "special token"),
    ({"messages": [{"role": "user", "content": "x"}] + [{"role": "assistant", "content": "y"}] * 2}, "follow each other"),
    ({"prompt": "x"}, "it has no completion"), ({"text": "x"}, "unknown key text"), (["x"], "it is no object"),
    (chat("[1]"), "are no object"), (chat("{"), "cannot be read"), (chat('{"a": 1, "a": 2}'), "a key twice"),
    (chat({"x": 1}, name="other"), "which its tools do not describe"), (chat({"x": 1}, tools=()), "do not describe"),
    (dict(chat({"city": "x"}), tools="{"), "tools cannot be read"),
    (dict(chat({}), tools=[{"name": 3}]), "a function with a name"), (dict(HI, tools=""), "tools cannot be read"),
    (dict(HI, tools={}), "tools are a list, got dict"), (dict(HI, tools=0), "tools are a list, got int"),
    (dict(HI, tools=[WEATHER, WEATHER]), "two tools have the name weather"),
    (dict(HI, tools=[{**WEATHER, "extra": 1}]), "unknown key extra of a tool"),
    (dict(HI, tools=[{"type": "function", "function": {"name": "f", "returns": {}}}]), "unknown key returns of the function"),
    (dict(HI, tools=[{"type": "web_search", "name": "f"}]), "a function with a name"),
    (dict(HI, tools=[{"name": "f", "description": ["x"]}]), "the description of f is a text"),
    (dict(HI, messages=[{"role": "user", "content": "x"}]), "it has messages and prompt"),
    (dict(HI, id=True), "an id is a text or a whole number"), (dict(HI, id=1.5), "an id is"),
    (dict(HI, id="row 0"), "means a place"),
    (dict(HI, tools=[{"name": "f", "parameters": {"type": "object", "required": 3}}]), "are no JSON schema"),
    (dict(HI, prompt="\ud800"), "not valid Unicode"),
    (dict(HI, tools=[{"name": "f", "description": "\udfff"}]), "not valid Unicode"),
    (chat('{"city": "\\ud800", "days": 1}'), "not valid Unicode"), (chat('{"city": NaN, "days": 1}'), "JSON has no value for"),
    (answering(3), "tool_call_id and name of a message are texts"), (answering("c9"), "which no earlier turn makes"),
    (answering("c1", role="user"), "tool_call_id of user"), (chat({"city": "x"}), "lacks days, which the tool requires"),
    (chat({"city": "x", "days": 1, "at": None}), "gives null for at, which the tool does not name")])
def test_a_row_that_is_no_conversation_is_named_with_the_reason_and_the_others_stay(row, why):
    good = {"prompt": "Hi", "completion": "Hello"}
    made = given(json.dumps([good, row]).encode(), ".json", STAGE, TOKENIZER, "ab" * 32)
    assert len(made.demonstrations) == 1 and list(made.wrong) == ["row 1"] and why in made.wrong["row 1"], made.wrong


@pytest.mark.parametrize(("data", "suffix"), [
    (b"{", ".json"), (b"{}", ".json"), (b"\xff", ".jsonl"), (b"PAR1", ".parquet"), (b"[]", ".csv")])
def test_a_file_that_is_no_list_of_rows_is_refused(data, suffix):
    with pytest.raises(Unreadable):
        read_rows(data, suffix, pairs=False)


def test_a_template_says_whether_it_has_words_of_its_own_for_tools():
    from rollbook.models.tokenizer import TURN_END, ChatTokenizer
    written = "{% if tools %}{{ tools }}{% endif %}" + TOKENIZER.template
    own = ChatTokenizer(TOKENIZER._tokenizer, written, stop=[TURN_END], specials={})
    assert own.describes_tools and not TOKENIZER.describes_tools


@pytest.mark.parametrize("value", [datetime.date(2020, 1, 2), b"raw", decimal.Decimal("1.5"), float("nan")])
def test_a_value_of_parquet_that_json_does_not_have_makes_its_row_unreadable(value):
    made = given(as_parquet([chat({"city": value, "days": 1})]), ".parquet", STAGE, TOKENIZER, "ab" * 32)
    assert not made.demonstrations and "JSON has no value for" in made.wrong["row 0"], made.wrong


def test_a_null_of_parquet_for_what_a_tool_requires_is_named_and_one_as_json_text_is_kept():
    rows = [chat({"city": "Oslo", "days": 3}), chat({"city": None, "days": 1})]
    made = given(as_parquet(rows), ".parquet", STAGE, TOKENIZER, "ab" * 32)
    assert len(made.demonstrations) == 1 and "lacks city, which the tool requires" in made.wrong["row 1"]
    rows = [chat(json.dumps(row["messages"][2]["tool_calls"][0]["function"]["arguments"])) for row in rows]
    for suffix, data in ((".parquet", as_parquet(rows)), (".jsonl", as_lines(rows))):
        made = given(data, suffix, STAGE, TOKENIZER, "ab" * 32)
        assert not made.wrong and '"city": null' in made.demonstrations[1].messages[-3].content


def test_what_is_null_around_the_arguments_is_absent_in_json_as_in_parquet():
    """As `datasets` writes rows of several forms: every key in every row."""
    full = {"role": None, "content": None, "tool_calls": None, "tool_call_id": None, "name": None}
    row = chat({"city": "Oslo", "days": 3})
    tools = [{**WEATHER, "function": {**WEATHER["function"], "strict": None}}]
    wide = {"id": None, "prompt": None, "completion": None, "tools": tools,
            "messages": [{**full, **one} for one in row["messages"]]}
    narrow = dict(row, tools=[WEATHER])
    told = [given(data, suffix, STAGE, TOKENIZER, "ab" * 32) for suffix, data in (
        (".jsonl", as_lines([wide])), (".jsonl", as_lines([narrow])), (".parquet", as_parquet([wide])))]
    assert not any(one.wrong for one in told) and told[0].demonstrations == told[1].demonstrations == told[2].demonstrations


def test_rows_are_named_once_whatever_ids_they_have():
    rows = [{"id": None, **HI}, {"id": "row 0", **HI}, {"id": 7, **HI}, {"id": "7", **HI}, {"id": None, **HI}, {"text": "x"}]
    made = given(json.dumps(rows).encode(), ".json", STAGE, TOKENIZER, "ab" * 32)
    assert [one.task for one in made.demonstrations] == ["given:row 0", "given:7", "given:row 4"]
    assert sorted(made.wrong) == ["row 1", "row 3", "row 5"] and made.rows == len(rows)
    assert "means a place" in made.wrong["row 1"] and "earlier row has the id 7" in made.wrong["row 3"]


def test_two_rows_of_one_id_are_refused():
    rows = [{"id": 1, "prompt": "Hi", "completion": "Hello"}] * 2
    made = given(json.dumps(rows).encode(), ".json", STAGE, TOKENIZER, "ab" * 32)
    assert made.wrong == {"row 1": "an earlier row has the id 1"}
