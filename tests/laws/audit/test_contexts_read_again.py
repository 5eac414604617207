"""The audit reads every turn of an attempt of several contexts in the context that it was sampled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from scripted import TOKENIZER, do, rollouts, task

from rollbook.audit.contexts import invented, misplaced
from rollbook.audit.detectors.events import EventsDetector
from rollbook.audit.observations import last_words, misread
from rollbook.environments import open_services
from rollbook.records import Action, Trace
from rollbook.rollouts.rules import Compaction, EpisodeRules

ASKED = '<tool_call>{"name": "delegate", "arguments": {"task": "x"}}</tool_call>'
SUMMED = EpisodeRules(dialect="hermes", compaction=Compaction(kind="summary", at_tokens=120))
SPLIT = EpisodeRules(dialect="hermes", reasoning="split")
DELEGATED = EpisodeRules(dialect="hermes", subagents=2)


def played(rules: EpisodeRules, script: Callable[[str, int], str]) -> Trace:
    with open_services() as services:
        made = rollouts(script, services, rules=rules)
        return made.solve([task()], 1, scope="s", envelope=made.envelope("w"))[0]


def summing(name: str, turn: int) -> str:
    return [do("a"), "all done", do("b"), "done again", "4"][turn]


def thinking(name: str, turn: int) -> str:
    return f"<think>hm {turn}</think>" + (do("a") if turn < 3 else "4")


def delegating(name: str, turn: int) -> str:
    return "sub" if "subagent" in name else [ASKED + do("a"), "4"][turn]


CASES = [(SUMMED, summing), (SPLIT, thinking), (DELEGATED, delegating)]


@pytest.mark.parametrize(("rules", "script"), CASES, ids=["summary", "split", "subagent"])
def test_turns_are_compared_in_every_context(rules: EpisodeRules, script: Callable[[str, int], str]) -> None:
    trace = played(rules, script)
    assert trace.parts and not (misplaced(trace) or invented(trace, TOKENIZER) or misread(trace, TOKENIZER))
    assert trace.episode is not None
    for place, turn in enumerate(trace.episode.turns):
        changed = partial(told_otherwise, trace, place)
        calls = tuple(replace(call, arguments={"what": "mended"}) for call in turn.action.calls)
        assert changed(action=Action(text=turn.action.text + "x", calls=turn.action.calls))
        assert not calls or changed(action=Action(text=turn.action.text, calls=calls))
        assert changed(tokens=turn.tokens - 1) and changed(part=7)


def told_otherwise(trace: Trace, place: int, **what: object) -> str:
    """What is found where one turn is on record otherwise."""
    episode = trace.episode
    assert episode is not None
    told = replace(episode.turns[place], **what)        # type: ignore[arg-type]
    turns = (*episode.turns[:place], told, *episode.turns[place + 1:])
    return misread(replace(trace, episode=replace(episode, turns=turns)), TOKENIZER)


def test_a_turn_that_is_on_no_record_is_found_in_a_context_that_ended_with_no_summary() -> None:
    trace = played(SPLIT, thinking)
    assert trace.episode is not None
    assert "counted" in misread(replace(trace, episode=replace(trace.episode, turns=trace.episode.turns[1:])), TOKENIZER)


@pytest.mark.parametrize(("rules", "script"), [*CASES, (SUMMED, lambda name, turn: [do("a"), "all done", do("fault")][turn])],
                         ids=["summary", "split", "subagent", "fault"])
def test_the_text_of_an_attempt_is_what_its_last_turn_spells(rules: EpisodeRules, script: Callable[[str, int], str]) -> None:
    trace = played(rules, script)
    assert trace.parts and trace.text == TOKENIZER.decode(last_words(trace)[-1]) == script("", len(said(trace, script)) - 1)
    for text in (trace.text + "x", "", "all done" if rules is SUMMED else TOKENIZER.decode(trace.token_ids)):
        assert found(trace) == [] and len(found(replace(trace, text=text))) == 1


def said(trace: Trace, script: Callable[[str, int], str]) -> list[str]:
    """Everything that the policy said in its own contexts, in order."""
    own = [*(n for n, part in enumerate(trace.parts, start=1) if part.kind != "subagent"), 0]
    return [TOKENIZER.decode(segment.token_ids) for number in own for segment in trace.segments_of(number)
            if segment.owner == "policy"]


def found(trace: Trace) -> list[str]:
    """What the audit's seventh row says about the text of one attempt."""
    detector = EventsDetector()
    detector._text(SimpleNamespace(tokenizer=TOKENIZER, tasks={}), SimpleNamespace(id=trace.id, trace=trace))     # type: ignore
    return [str(one) for one in detector.failures]
