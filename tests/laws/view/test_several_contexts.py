"""Every context of an attempt is shown, in the viewer and in the report, its own tokens with the numbers of their own update."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scripted import TOKENIZER, do, rollouts, task

from rollbook.environments import open_services
from rollbook.records import Trace, encode
from rollbook.report.tokens import TokenTexts
from rollbook.report.transcripts import _side
from rollbook.rollouts.rules import Compaction, EpisodeRules
from rollbook.view.tokens import Trained, contexts

ASKED = '<tool_call>{"name": "delegate", "arguments": {"task": "x"}}</tool_call>'


class Decoder:
    """The tokenizer under the name that a run's own one has."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return TOKENIZER.decode(ids)


TEXTS = TokenTexts(tokenizer=Decoder(), absent=None)


@pytest.fixture(scope="module")
def trace() -> Trace:
    def script(name: str, turn: int) -> str:
        return "from below" if "subagent" in name else [ASKED, "a summary", do("b"), "second summary", "4"][turn]
    rules = EpisodeRules(dialect="hermes", compaction=Compaction(kind="summary", at_tokens=400), subagents=1)
    with open_services() as services:
        made = rollouts(script, services, rules=rules)
        return made.solve([task()], 1, scope="s", envelope=made.envelope("w"))[0]


def row(of: Trace) -> dict[str, object]:
    """The trajectory as a table holds it."""
    logps = [value for one in of.segments for value in (one.logps or (None,) * one.count)]
    return {"attempt": of.attempt, "task": of.task, "group": of.group, "text": of.text, "stop_reason": of.stop_reason,
            "token_ids": list(of.token_ids), "logps": logps,
            "spans": [{"owner": one.owner, "length": one.count, "version": one.version} for one in of.segments],
            "episode": json.dumps({"episode": encode(of.episode), "parts": encode(of.parts), "kept": None})}


def learned(of: Trace) -> tuple[Trained, ...]:
    """An update that gave every trained token its own place as its advantage."""
    return (Trained(scope="rl/1/0", batch="b", update=None, values={"advantage": np.arange(1.0, of.learnt_count + 1)}),)


@pytest.mark.parametrize("taught", [False, True])
def test_every_context_is_drawn_with_its_own_tokens_and_numbers(trace: Trace, taught: bool) -> None:
    learnt = trace.with_subagents() if taught else trace
    found = contexts(row(trace), TEXTS, learned(learnt))
    assert [title.partition(", ")[2] for title, _ in found] == ["compacted", "compacted", "a subagent's", "the one it ended in"]
    texts = ["".join(token.text for turn in turns for token in turn.tokens if turn.owner == "policy") for _, turns in found]
    assert "a summary" in texts[0] and "second summary" in texts[1] and "from below" in texts[2] and texts[3].startswith("4")
    order = [number for number in (1, 2, 3, 0) if number in learnt.learnt_parts]
    given = {number: [float(value) for turn in turns for one in turn.tokens for name, value in one.told if name == "advantage"]
             for number, (_, turns) in zip((1, 2, 3, 0), found, strict=True)}
    assert [value for number in order for value in given[number]] == list(range(1, learnt.learnt_count + 1))
    assert taught or not given[3]


def test_an_attempt_of_one_context_has_no_title() -> None:
    with open_services() as services:
        made = rollouts(lambda name, turn: "4", services)
        one = made.solve([task()], 1, scope="s", envelope=made.envelope("w"))[0]
    (title, turns), = contexts(row(one), TEXTS, learned(one))
    assert title == "" and [turn.owner for turn in turns] == ["user", "policy"]


def test_a_transcript_shows_every_context_and_counts_all_that_was_sampled(trace: Trace) -> None:
    side = _side("rl", (trace, None, None), TEXTS, skip=1)      # type: ignore[arg-type]
    titles = [part.text for part in side.parts if part.owner == "context"]
    assert [str(title)[:14] for title in titles] == [f"context {n} of 4" for n in (1, 2, 3, 4)]
    shown = "".join(token.text for part in side.parts for token in part.tokens)
    assert "a summary" in shown and "second summary" in shown and "from below" in shown
    assert f"policy {trace.sampled_count}" in side.facts or f"{trace.sampled_count} policy" in side.facts
