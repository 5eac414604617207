"""Whose token is it: found from the roles of the messages alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.audit.ownership import NotRendered, owned
from rollbook.audit.sampling import Sample
from rollbook.models.tokenizer import byte_tokenizer
from rollbook.records import Message

TOKENIZER = byte_tokenizer()
STOP = min(TOKENIZER.stop_ids)
WORDS = st.text(alphabet="ab 1+é=\n", min_size=1, max_size=12)


def rendered(messages):
    """Token ids of a whole conversation and the spans of the assistant's turns, built turn by turn."""
    ids, spans, shown = (), [], ""
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        head = TOKENIZER.render(messages[:place], generation_prompt=True)
        ids += TOKENIZER.encode(head[len(shown):])
        body = (*TOKENIZER.encode(message.content), STOP)
        spans.append((len(ids), len(ids) + len(body)))
        ids += body
        shown = head + message.content + TOKENIZER.token_text(STOP)
    return ids, tuple(spans)


@given(st.lists(st.tuples(st.sampled_from(["user", "tool"]), WORDS, WORDS), min_size=1, max_size=4), st.booleans())
def test_the_policy_owns_its_turns_with_their_ends_and_nothing_else(turns, with_system):
    messages = [Message(role="system", content="be brief")] * with_system
    for role, shown, said in turns:
        messages += [Message(role=role, content=shown), Message(role="assistant", content=said)]
    ids, spans = rendered(tuple(messages))
    found = owned(messages, ids, TOKENIZER)
    assert found.spans == spans
    assert found.reencoded
    assert found.role_at(0) == ("system, " if with_system else "") + turns[0][0]


def conversation():
    messages = (Message(role="user", content="2+2="), Message(role="assistant", content="call"),
                Message(role="tool", content="4"), Message(role="assistant", content="It is 4"))
    return messages, rendered(messages)[0]


def test_a_tool_is_named_for_the_tokens_between_two_turns():
    messages, ids = conversation()
    found = owned(messages, ids, TOKENIZER)
    assert found.role_at(found.spans[0][1]) == "tool"
    assert found.role_at(0) == "user"


def test_an_answer_that_was_cut_has_no_end_of_turn_and_is_owned_to_its_last_token():
    messages, ids = conversation()
    cut = (*messages[:3], Message(role="assistant", content="It is"))
    assert owned(cut, ids[:-3], TOKENIZER).spans[-1][1] == len(ids) - 3


@pytest.mark.parametrize(("change", "words"), [
    (lambda ids: ids[1:], "not what the template writes"),
    (lambda ids: (*ids, 70), "in no message"),
    (lambda ids: (*ids[:-2], 70, ids[-1]), "do not spell message 3"),
])
def test_tokens_that_do_not_spell_the_messages_are_refused(change, words):
    messages, ids = conversation()
    with pytest.raises(NotRendered, match=words):
        owned(messages, change(ids), TOKENIZER)


def test_a_conversation_without_an_answer_has_nothing_to_imitate():
    with pytest.raises(NotRendered, match="nothing to imitate"):
        owned((Message(role="user", content="2+2="),), (1, 2), TOKENIZER)


def test_another_spelling_of_the_same_prompt_is_noticed_and_owned_alike():
    messages = (Message(role="user", content="x"), Message(role="assistant", content="7"))
    ids, spans = rendered(messages)
    mark = TOKENIZER.encode("assistant\n")
    at = next(i for i in range(len(ids)) if ids[i:i + len(mark)] == mark)
    letters = tuple(token for letter in "assistant\n" for token in TOKENIZER.encode(letter))
    found = owned(messages, ids[:at] + letters + ids[at + len(mark):], TOKENIZER)
    assert not found.reencoded
    moved = len(letters) - len(mark)
    assert found.spans == tuple((start + moved, end + moved) for start, end in spans)


def test_a_sample_takes_the_first_and_then_the_same_share_in_any_order():
    names = [f"Trace:{value:064x}" for value in range(4000)]
    one, other = Sample(whole=10, every=8), Sample(whole=0, every=8)
    taken = [name for name in names if one.takes(name)]
    assert taken[:10] == names[:10]
    assert set(taken[10:]) == {name for name in reversed(names) if other.takes(name)} - set(names[:10])
    assert one.share == f"{len(taken)} of 4000" and len(taken) == 10 + sum(v % 8 == 0 for v in range(10, 4000))
