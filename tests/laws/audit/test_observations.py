"""What an environment said is what the policy was shown, token by token; anything else is named."""

from __future__ import annotations

from dataclasses import replace

from scripted import TOKENIZER, ScriptedSampler, do, rollouts, task

from rollbook.audit.observations import misread, unseen
from rollbook.environments import open_services
from rollbook.records import Segment, Trace


def trace(*said: str, **parameters: str) -> Trace:
    sampler = ScriptedSampler(lambda name, turn: said[min(turn, len(said) - 1)])
    with open_services() as services:
        made = rollouts(sampler, services, **parameters)
        return made.solve([task()], 1, scope="s", envelope=made.envelope("w"))[0]


def changed(one: Trace, owner: str, segment: Segment) -> Trace:
    place = next(place for place, held in enumerate(one.segments) if held.owner == owner)
    return replace(one, segments=(*one.segments[:place], segment, *one.segments[place + 1:]))


def test_what_was_shown_as_it_was_said_passes() -> None:
    for said in ((do("a"), "4"), (do("a", "b"), "<tool_call>{</tool_call>", "4"), ("4",), ("hello", "4"), (do("win"),)):
        assert unseen(trace(*said), TOKENIZER) == ""
    assert unseen(trace("4", opening="a room"), TOKENIZER) == ""


def test_a_reply_that_was_shown_otherwise_is_named() -> None:
    shown = Segment(owner="tool", token_ids=TOKENIZER.encode_plain("did b"))
    assert "'did b'" in unseen(changed(trace(do("a"), "4"), "tool", shown), TOKENIZER)


def test_a_reply_under_another_owner_or_never_shown_or_never_given_is_named() -> None:
    one = trace(do("a"), "4")
    told = next(segment for segment in one.segments if segment.owner == "tool")
    assert "the environment's" in unseen(changed(one, "tool", replace(told, owner="environment")), TOKENIZER)
    assert "never shown" in unseen(replace(one, segments=tuple(s for s in one.segments if s.owner != "tool")), TOKENIZER)
    assert "2 observations" in unseen(replace(one, segments=(*one.segments[:3], told, *one.segments[3:])), TOKENIZER)


def test_what_the_environment_was_told_is_what_the_policys_tokens_say() -> None:
    for said in ((do("a"), "4"), (do("a", "b"), "<tool_call>{</tool_call>", "4"), ("4",), ("hello", "4"), (do("win"),),
                 (do("nothing") + do("a"), "4")):
        assert misread(trace(*said), TOKENIZER) == ""


def test_an_action_that_the_tokens_do_not_say_is_named() -> None:
    one = trace(do("a"), "4")
    first, *rest = one.episode.turns
    (call,) = first.action.calls

    def under(action) -> str:
        turns = (replace(first, action=action), *rest)
        return misread(replace(one, episode=replace(one.episode, turns=turns)), TOKENIZER)
    assert "asked for" in under(replace(first.action, calls=(replace(call, arguments={"what": "b"}),)))
    assert "0 calls" in under(replace(first.action, calls=()))
    assert "was told 'please'" in under(replace(first.action, text="please"))
