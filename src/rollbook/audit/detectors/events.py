"""Stage 7: events. What was sampled is what was recorded and what was trained, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from rollbook.audit.contexts import invented, misplaced
from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.index import RunIndex
from rollbook.audit.keeping import REMEDY, kept_otherwise
from rollbook.audit.observations import last_words, misread, unseen
from rollbook.audit.prompts import contained
from rollbook.audit.sampling import Sample
from rollbook.records import HostUpdate, NotExposed, Segment, Trace, sampled_hash
from rollbook.records.host import ids_hash
from rollbook.records.rollout import turns_of

HASHING = "embedded"       # engines whose name begins so give a hash of every turn
KEEP = "carry the ids, log-probs and versions that the engine returned through to the batch; never tokenise text again"
PACKED = ("token_ids", "seq", "length", "behavior", "version")


class EventsDetector(Detector):
    """Every turn against the hash its engine made of it, every batch against its trajectories, the text on a sample."""

    stage, name = 7, "events"
    absent = "the run holds no trajectory"

    def __init__(self) -> None:
        super().__init__()
        self.sample = Sample(whole=2048, every=16)
        self.rows = self.unhashed = self.reencoded = self.several = 0
        self.batches = self.gone = self.hidden = self.contexts = self.reworded = 0
        self.prompts: dict[str, tuple[int, ...]] = {}

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        """A recorded host: the sequences its loss was given are the trajectories on record."""
        if not isinstance(record, HostUpdate) or not record.traces:
            return
        self.checked()
        self.batches += 1
        held = [run.recent.get(trace) for trace in record.traces]
        self.gone += held.count(None)
        others = {ids_hash(one[0].token_ids) for one in held if one is not None} - set(record.sequences)
        if record.unmatched or others:
            self.fail(identity, f"step {record.index} of the host trained {record.unmatched} sequences that are no recorded "
                                f"trajectory, and names {len(others)} trajectories that its loss was not given", KEEP)

    def row(self, run: RunIndex, row: Row) -> None:
        self.checked()
        self.rows += 1
        trace = row.trace
        self.contexts += bool(trace.parts)
        problem = next(filter(None, (misordered(trace, number) for number in range(len(trace.parts) + 1))), "")
        problem = problem or misplaced(trace) or unpublished(run, trace)
        if problem:
            self.fail(row.id, problem, "record segments as they came, each with the published version that made it")
        stage = run.policy_stage(run.table or "")
        if stage is not None and (problem := kept_otherwise(trace, stage, run.envelopes.get(trace.envelope or ""))):
            self.fail(row.id, problem, REMEDY)
        self._hashes(run, row)
        if self.sample.takes(row.id):
            self._text(run, row)
            if run.tokenizer is not None and (problem := unseen(trace, run.tokenizer) or invented(trace, run.tokenizer)):
                self.fail(row.id, problem, "show the policy what the environment said, and record what was shown")
            if run.tokenizer is not None and (problem := misread(trace, run.tokenizer)):
                self.fail(row.id, problem, "tell the environment what the policy's tokens say, and nothing that was made of them")

    def step(self, run: RunIndex, step: StoredStep) -> None:
        """The batch's sequences, one after the other, are the policy's tokens of its trajectories."""
        self.checked()
        self.batches += 1
        held = [run.recent.get(identity) for identity in step.batch.traces]
        missing = [identity for identity, one in zip(step.batch.traces, held, strict=True) if one is None]
        if missing and len(run.recent.held) >= self.rows:
            self.fail(step.batch_id, f"it trains {len(missing)} trajectories that are not on record, first {missing[0]}", KEEP)
        elif missing:
            self.gone += len(missing)
        if absent := [name for name in PACKED if name not in step.given]:
            self.fail(step.batch_id, f"its tensors lack {', '.join(absent)}", "store the batch as the learner used it")
            return
        traces = [None if one is None else run.learnt(step.batch.scope, one[0]) for one in held]
        for problem in packed_otherwise(traces, step.batch.traces, step.given):
            self.fail(step.batch_id, problem, KEEP)
            break

    def finish(self, run: RunIndex) -> None:
        if self.rows and run.tokenizer is not None:
            self.note(f"text decoded again for {self.sample.share} trajectories, {self.reencoded} of them would be tokenised "
                      "in another way")
        if self.batches:
            self.note(f"{self.batches} batches compared with their trajectories")
        if self.gone:
            self.note(f"{self.gone} trained trajectories lay too far back to be compared")
        if self.unhashed:
            self.note(f"the engine gave no hash for {self.unhashed} trajectories: that their ids are the engine's is not shown")
        if self.hidden:
            self.note(f"the host did not show the log-probs of {self.hidden} trajectories: they could not be hashed again")
        if self.several:
            self.note(f"{self.several} trajectories of several turns of a host: their text was not compared")
        if self.reworded:
            self.note(f"{self.reworded} attempts of an outside agent in which the task's own words begin no conversation")
        if self.contexts:
            self.note(f"{self.contexts} trajectories of several contexts, each held against the one it came from")

    def _hashes(self, run: RunIndex, row: Row) -> None:
        for number in range(len(row.trace.parts) + 1):
            stated = row.trace.parts[number - 1].sampled if number else row.trace.sampled
            if not self._hashed(run, row, tuple(turns_of(row.trace.segments_of(number))), stated):
                return

    def _hashed(self, run: RunIndex, row: Row, turns: tuple[tuple[Segment, ...], ...], stated: tuple[str, ...]) -> bool:
        """Whether the turns of one context are what the engine sampled, as far as it says so."""
        if any(isinstance(segment.logps, NotExposed) for turn in turns for segment in turn):
            self.hidden += 1
            if run.recipe is not None:
                self.fail(row.id, "it hides the log-probs of what was sampled", KEEP)
            return False
        if not stated:
            self.unhashed += 1
            if turns and self._hashing(run, turns[0][0].version):
                self.fail(row.id, "it carries no hash of what was sampled, although its engine makes one",
                          "keep the engine's hash with the trajectory")
            return not turns
        if len(stated) != len(turns):
            self.fail(row.id, f"{len(stated)} hashes for {len(turns)} turns of the policy", "keep the engine's hash of each turn")
            return False
        for number, (turn, wanted) in enumerate(zip(turns, stated, strict=True)):
            ids = [token for segment in turn for token in segment.token_ids]
            logps = [value for segment in turn for value in segment.logps or ()]
            versions = [segment.version or 0 for segment in turn for _ in segment.token_ids]
            found = sampled_hash(ids, logps, versions)
            if found != wanted:
                self.fail(row.id, f"turn {number + 1} of {row.trace.attempt} is not what the engine sampled: its {len(ids)} ids, "
                          f"log-probs and versions hash to {found[:12]}, the engine's hash is {wanted[:12]}", KEEP)
                return False
        return True

    def _hashing(self, run: RunIndex, version: int | None) -> bool:
        held = None if version is None else run.versions.get(version)
        return held is not None and any(one.consumer.startswith(HASHING) for one in held.acknowledged)

    def _text(self, run: RunIndex, row: Row) -> None:
        """The text is the decoded ids; the prompt is the rendered task."""
        trace, tokenizer = row.trace, run.tokenizer
        if tokenizer is None:
            return
        turns = tuple(trace.turns)
        if len(turns) > 1 and trace.episode is None:
            self.several += 1
        elif trace.parts and trace.episode is not None and not trace.episode.agent:
            spelled = [tokenizer.decode(ids) for ids in last_words(trace)]
            if trace.text not in spelled:
                self.fail(row.id, f"its text {trace.text[-40:]!r} is not what its last turn spells, {spelled[0][-40:]!r}",
                          "keep the decoded ids of the last turn as the text")
        elif turns:
            told = trace.episode.turns[-1:] if trace.episode is not None and not trace.episode.agent else ()
            silent = told and not told[0].tokens        # an agent's turns are its calls, and carry no tokens
            ids = () if silent else tuple(token for segment in turns[-1] for token in segment.token_ids)
            decoded = tokenizer.decode(ids)
            if decoded != trace.text:
                at = next((i for i, (a, b) in enumerate(zip(decoded, trace.text, strict=False)) if a != b),
                          min(len(decoded), len(trace.text)))
                self.fail(row.id, f"its text is not what its ids spell: from character {at} on {trace.text[at:at + 20]!r} for "
                          f"{decoded[at:at + 20]!r}", "keep the decoded ids as the text")
            self.reencoded += tokenizer.encode(trace.text) != (ids[:-1] if ids[-1:] and ids[-1] in tokenizer.stop_ids else ids)
        task = run.tasks.get(trace.task)
        if task is None or trace.segments[0].owner == "policy":
            return
        if trace.episode is not None and trace.episode.agent:       # where it shows the task, and how, is its own affair
            self.reworded += not any(contained(task.prompt, tokenizer.decode(one.prompt_ids)) for one in trace.contexts())
            return
        if trace.task not in self.prompts:
            self.prompts = {trace.task: tokenizer.prompt(task.prompt)}      # attempts at a task stand together
        if trace.prompt_ids != self.prompts[trace.task] and not (
                trace.episode is not None and contained(task.prompt, tokenizer.decode(trace.prompt_ids))):
            self.fail(row.id, f"its prompt of {len(trace.prompt_ids)} tokens is not the rendered prompt of {trace.task[:17]}",
                      "render the task's own messages with the recorded template")


def misordered(trace: Trace, number: int = 0) -> str:
    """What is wrong with the order of the segments of a context; empty when nothing is."""
    segments = trace.segments_of(number)
    if not segments or segments[0].owner == "policy":
        return "it does not begin with what the policy was shown"
    previous = segments[0]
    for segment in segments[1:]:
        if not segment.count:
            return f"a segment of the {segment.owner} is empty"
        if segment.owner == previous.owner == "policy" and not (segment.version or 0) > (previous.version or 0):
            return f"version {segment.version} follows version {previous.version} within one turn"
        previous = segment
    return ""


def unpublished(run: RunIndex, trace: Trace) -> str:
    """A version that was not published before the trajectory; empty when all were."""
    for segment in trace.sampled_segments:
        if segment.version not in run.versions:
            return f"version {segment.version} made some of its tokens, which was not published before"
    return ""


def packed_otherwise(traces: list[Trace | None], names: tuple[str, ...], given: Mapping[str, np.ndarray]) -> Iterator[str]:
    """In what the packed sequences differ from their trajectories; a trajectory that is gone is passed over."""
    length, token = given["length"], given["token_ids"]
    if len(length) != len(traces) or int(length.sum()) != len(token):
        yield f"{len(length)} lengths of {int(length.sum())} tokens for {len(traces)} trajectories and {len(token)} tokens"
        return
    if any(len(given[name]) != len(token) for name in ("seq", "behavior", "version")):
        yield "seq, behavior and version are not as long as token_ids"
        return
    if not np.array_equal(given["seq"], np.repeat(np.arange(len(traces)), length)):
        yield "its tokens are not numbered by their sequences"
    if _all_equal(traces, given):
        return
    end = np.cumsum(length)
    for trace, name, start, stop in zip(traces, names, end - length, end, strict=True):
        if trace is not None:
            yield from _sequence(trace, name, {key: given[key][start:stop] for key in ("token_ids", "behavior", "version")})


def _all_equal(traces: Sequence[Trace | None], given: Mapping[str, np.ndarray]) -> bool:
    """Whether every packed token is its trajectory's, where all trajectories are there: one look at the batch as a whole."""
    held = [trace for trace in traces if trace is not None]
    own = [segment for trace in held for segment in trace.learnt_segments]
    if len(held) < len(traces) or any(isinstance(segment.logps, NotExposed) for segment in own):
        return False
    lengths = [len(segment.token_ids) for segment in own]
    if [trace.learnt_count for trace in held] != given["length"].tolist():
        return False
    return (np.array_equal(given["token_ids"], list(chain.from_iterable(segment.token_ids for segment in own)))
            and np.array_equal(given["behavior"], np.array(list(chain.from_iterable(segment.logps or () for segment in own)),
                                                           dtype=np.float32))
            and np.array_equal(given["version"], np.repeat([segment.version for segment in own], lengths)))


def _sequence(trace: Trace, name: str, found: Mapping[str, np.ndarray]) -> Iterator[str]:
    """In what one packed sequence differs from its trajectory."""
    segments = tuple(trace.learnt_segments)
    count = trace.learnt_count
    if len(found["token_ids"]) != count:
        yield f"{name} has {count} tokens of the policy, {len(found['token_ids'])} were trained"
        return
    wanted: dict[str, np.ndarray] = {
        "token_ids": np.array([token for segment in segments for token in segment.token_ids], dtype=np.int64),
        "behavior": np.array([value for segment in segments for value in segment.logps or ()], dtype=np.float32),
        "version": np.repeat([segment.version for segment in segments], [len(s.token_ids) for s in segments])}
    if len(wanted["behavior"]) != count:
        del wanted["behavior"]                      # a recorded host did not show them
    words = {"token_ids": "ids", "behavior": "log-probs at sampling", "version": "policy versions"}
    for key, values in wanted.items():
        wrong = np.flatnonzero(found[key] != values)
        if len(wrong):
            at = int(wrong[0])
            yield (f"{len(wrong)} of {count} {words[key]} of {name} are not the sampled ones: token {at} is {found[key][at]:.6g} "
                   f"in the batch and {values[at]:.6g} in the trajectory")
