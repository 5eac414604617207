"""Permission for one exact policy: the rules a decision must keep, and the check that whoever loads the policy makes.

A good evaluation is no permission. An `allow` states thresholds and meets them in every evaluation of the policy on record, names
who answers for what got worse, what may be done with the policy, a canary, what to go back to and when it ends; it is signed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rollbook.evaluation.signing import GateRefused, covers, verify
from rollbook.evaluation.statistics import wilson
from rollbook.records import (
    EvalReport,
    GateDecision,
    Incident,
    PolicyVersion,
    ProtocolBundle,
    RecordError,
    Task,
    canonical,
    digest,
    encode,
)

CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a run holds for a decision to rest on, by id. `kept` names the versions whose weights can be loaded again, `refused`
    the weights that nobody may use: refused by the last decision about them, or rolled back since."""

    versions: Mapping[str, PolicyVersion]
    kept: Collection[str]
    reports: Mapping[str, EvalReport]
    protocols: Mapping[str, ProtocolBundle]
    tasks: Mapping[str, Task]
    refused: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One rule that a decision breaks: what was found, what to do."""

    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A decision and the bundle that signs it, None where there is none; `checkpoint` is where the files it is about lie."""

    decision: GateDecision
    bundle: bytes | None
    checkpoint: Path | None = None


def undecided(policy: PolicyVersion) -> GateDecision:
    """What stands at the end of every run: no permission."""
    return GateDecision(policy=policy.id, weights=policy.weights, files={}, decision="undecided", thresholds={}, reports=(),
                        regression_owners={}, authority_limits=(), canary=None, rollback=None, incidents=None, decided=None,
                        expires=None, signature=None, public_key=None)


def document(decision: GateDecision) -> bytes:
    """The bytes that a signature covers: everything but the signature itself."""
    return canonical({"schema": GateDecision.SCHEMA, "decision": encode(replace(decision, signature=None))})


def policy_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a checkpoint folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _file_hash(path) for path in files}


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def moment(text: str) -> datetime:
    """A date or time as an instant, UTC where it names no zone; a date alone is its first instant.

    Example: moment("2027-03-01") -> 2027-03-01 00:00:00+00:00
    """
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise RecordError("a time must be written as a date or an ISO 8601 time", got=repr(text),
                          why="an expiry that cannot be read never comes",
                          fix="write e.g. 2027-03-01 or 2027-03-01T12:00Z") from error
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def stamp(when: datetime) -> str:
    """An instant as a decision states it.

    Example: stamp(datetime(2027, 3, 1, tzinfo=UTC)) -> "2027-03-01T00:00:00Z"
    """
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def evaluations(policy: str, weights: str, reports: Mapping[str, EvalReport]) -> dict[str, EvalReport]:
    """The reports of exactly this policy, by id."""
    return {name: report for name, report in reports.items() if report.policy == policy and report.weights == weights}


def measure(name: str, reports: Iterable[EvalReport], ground: Ground, *, unscored: float | None = None) -> float | None:
    """The least value of a measure over the reports, from their outcomes; None where nothing was scored.

    What nobody could score is left out, or counts as `unscored`.
    `PROTOCOL` is the accuracy under the protocol of that name, `PROTOCOL.low` the lower end of its 95% Wilson interval,
    `PROTOCOL/FAMILY` the accuracy on one task family.
    """
    found = []
    for report in reports:
        bundle = ground.protocols.get(report.protocol)
        protocol = bundle.name if bundle is not None else None
        given = {task: unscored if value is None else value for task, value in report.outcomes.items()}
        known = {task: value for task, value in given.items() if value is not None}
        if name == protocol and known:
            found.append(sum(known.values()) / len(known))
        elif name == f"{protocol}.low" and known:
            found.append(wilson(sum(known.values()), len(known)).low)
        elif protocol is not None and name.startswith(f"{protocol}/"):
            family = by_family(known, ground.tasks).get(name.removeprefix(f"{protocol}/"))
            found += [] if family is None else [family]
    return min(found, default=None)


def by_family(outcomes: Mapping[str, float], tasks: Mapping[str, Task]) -> dict[str, float]:
    """Mean outcome of each task family."""
    values: dict[str, list[float]] = {}
    for task, value in outcomes.items():
        values.setdefault(tasks[task].family if task in tasks else "unknown", []).append(value)
    return {family: sum(held) / len(held) for family, held in sorted(values.items())}


def refused(decisions: Iterable[GateDecision], incidents: Iterable[Incident]) -> frozenset[str]:
    """The weights that may not be used: by weights, the decision made last refuses, or an incident since it rolled back."""
    last: dict[str, tuple[str, bool]] = {}
    made = [(one.decided or "", one.weights, one.decision == "refuse") for one in decisions if one.decision != "undecided"]
    for when, weights, no in (*made, *((one.reported, one.weights, True) for one in incidents if one.action == "rollback")):
        last[weights] = max(last.get(weights, ("", False)), (when, no))
    return frozenset(weights for weights, (_, no) in last.items() if no)


def regressions(policy: PolicyVersion, ground: Ground) -> dict[str, tuple[float, float]]:
    """Families on which the policy is worse than an earlier policy under the same protocol: accuracy then and now.

    Both are taken over the tasks that both sides scored; where several earlier policies were better, the best is given.
    """
    found: dict[str, tuple[float, float]] = {}
    for after in evaluations(policy.id, policy.weights, ground.reports).values():
        for before in ground.reports.values():
            earlier = ground.versions.get(before.policy)
            if before.protocol != after.protocol or earlier is None or earlier.index >= policy.index:
                continue
            shared = {t: (b, a) for t, b in before.outcomes.items() if b is not None and (a := after.outcomes.get(t)) is not None}
            then = by_family({task: pair[0] for task, pair in shared.items()}, ground.tasks)
            now = by_family({task: pair[1] for task, pair in shared.items()}, ground.tasks)
            found |= {family: (then[family], now[family]) for family in now
                      if now[family] < then[family] - CLOSE and then[family] > found.get(family, (-1.0, 0.0))[0]}
    return found


def breaches(decision: GateDecision, ground: Ground) -> list[Breach]:
    """Every rule that the decision breaks, given what its run holds; the signature apart."""
    if decision.decision == "undecided":
        return []
    policy = ground.versions.get(decision.policy)
    if policy is None:
        return [Breach(evidence=f"it is about {decision.policy[:30]}, a policy that this run did not publish",
                       remedy="decide about a policy of this run")]
    if policy.weights != decision.weights:
        return [Breach(evidence=f"it names weights {decision.weights[:12]}; {decision.policy[:26]} has {policy.weights[:12]}",
                       remedy="decide about the weights that the policy has")]
    if decision.decision == "refuse":
        return []
    return [*_statements(decision, policy), *_times(decision), *_evidence(decision, ground), *_owners(decision, policy, ground),
            *_way_back(decision, ground)]


def _statements(decision: GateDecision, policy: PolicyVersion) -> Iterator[Breach]:
    """What an allow must say, whatever the numbers are."""
    limits = decision.authority_limits
    wanted = [
        (policy.healthy, "its policy was not healthy when it was published", "decide about a healthy policy"),
        (bool(decision.files), "it names no checkpoint file", "decide about a policy whose checkpoint is kept"),
        (bool(limits) and all(name.strip() for name in limits), "it limits its authority to nothing that can be read",
         "say what may be done with the policy: --limit"),
        (bool((decision.canary or "").strip()), "it states no canary", "say how the policy is first tried on little: --canary"),
    ]
    yield from (Breach(evidence=evidence, remedy=remedy) for holds, evidence, remedy in wanted if not holds)


def _times(decision: GateDecision) -> Iterator[Breach]:
    try:
        decided, expires = moment(decision.decided or ""), moment(decision.expires or "")
    except RecordError:
        when, end = decision.decided or "at no stated time", decision.expires or "never"
        yield Breach(evidence=f"it was decided {when} and expires {end}", remedy="state when the permission ends: --expires")
        return
    if expires <= decided:
        yield Breach(evidence=f"it expired {decision.expires}, before it was decided {decision.decided}",
                     remedy="decide with an expiry that is still to come")


def _named(held: Mapping[str, EvalReport], ground: Ground) -> str:
    """The protocols under which a policy was evaluated."""
    names = {ground.protocols[one.protocol].name for one in held.values() if one.protocol in ground.protocols}
    return ", ".join(sorted(names)) or "there is none"


def _evidence(decision: GateDecision, ground: Ground) -> Iterator[Breach]:
    """Thresholds against the evaluations of this policy, all of them."""
    held = evaluations(decision.policy, decision.weights, ground.reports)
    if not held:
        yield Breach(evidence="its policy was never evaluated", remedy="evaluate this policy, then decide")
        return
    if set(decision.reports) != set(held):
        yield Breach(evidence=f"it rests on {len(set(decision.reports))} reports; the run holds {len(held)} of this policy, "
                              f"{len(set(decision.reports) & set(held))} of them among those", remedy="decide on all evaluations")
    if not decision.thresholds:
        yield Breach(evidence="it states no threshold", remedy="state what the policy must reach: --threshold heldout=0.4")
    for name, least in sorted(decision.thresholds.items()):
        value = measure(name, held.values(), ground)
        if not (math.isfinite(least) and 0.0 < least <= 1.0):
            yield Breach(evidence=f"its threshold {name} = {least:g} decides nothing",
                         remedy="a threshold is an accuracy above 0 and at most 1")
        elif value is None:
            yield Breach(evidence=f"nothing of its policy was scored that its threshold {name} could be compared with",
                         remedy="name PROTOCOL, PROTOCOL.low or PROTOCOL/FAMILY of an evaluation of this policy; its protocols: "
                                + _named(held, ground))
        elif value < least - CLOSE:
            yield Breach(evidence=f"its threshold {name} is {least:g}; the evaluations of this policy give {value:.4f}",
                         remedy="refuse the policy, or train it until it meets the threshold")
        elif (floor := measure(name, held.values(), ground, unscored=0.0) or 0.0) < least - CLOSE:
            yield Breach(evidence=f"its threshold {name} is {least:g}; what was scored gives {value:.4f}, and no more than "
                                  f"{floor:.4f} is known, for some answers were left unscored",
                         remedy="evaluate until every answer is scored: unscored is not right")


def _owners(decision: GateDecision, policy: PolicyVersion, ground: Ground) -> Iterator[Breach]:
    for family, (then, now) in regressions(policy, ground).items():
        if not decision.regression_owners.get(family, "").strip():
            yield Breach(evidence=f"{family} got worse, {then:.4f} to {now:.4f}, and nobody answers for it",
                         remedy=f"name who does: --owner {family}=NAME")


def _way_back(decision: GateDecision, ground: Ground) -> Iterator[Breach]:
    named = {version.id for version in ground.versions.values() if version.weights == decision.rollback and version.healthy}
    remedy = "name a healthy policy of this run whose checkpoint is kept: --rollback STAGE"
    if decision.rollback is None or not named:
        yield Breach(remedy=remedy,
                     evidence=f"its rollback {(decision.rollback or 'nothing')[:12]} is no healthy policy of this run")
    elif decision.rollback == decision.weights:
        yield Breach(evidence="its rollback is the policy itself", remedy=remedy)
    elif decision.rollback in ground.refused:
        yield Breach(evidence=f"its rollback {decision.rollback[:12]} is a policy that was itself refused", remedy=remedy)
    elif not named & set(ground.kept):
        yield Breach(evidence=f"the weights {decision.rollback[:12]} of its rollback were not kept", remedy=remedy)


def check_gate(signed: Signed, files: Mapping[str, str], *, key: bytes, now: datetime, wanted: Collection[str]) -> None:
    """Returns when the decision permits what is `wanted` with exactly these files, at this instant; GateRefused otherwise.

    `files` maps the files about to be loaded to their SHA-256 (`policy_files`), `key` is the public key that the caller trusts.
    """
    decision = signed.decision
    if decision.decision != "allow":
        raise GateRefused("this policy has no permission", got=f"the decision `{decision.decision}`",
                          why="a finished run or a good evaluation permits nothing",
                          fix="have it decided: `rollbook gate decide`")
    if signed.bundle is None or decision.signature is None:
        raise GateRefused("this permission is not signed", got="an `allow` without a signature",
                          why="anyone could have written it", fix="have it decided and signed: `rollbook gate decide`")
    if digest(signed.bundle) != decision.signature:
        raise GateRefused("this is not the signature that the decision names",
                          got=f"{digest(signed.bundle)[:16]} for {decision.signature[:16]}",
                          why="one of the two was exchanged", fix="restore them from a copy of the run")
    covers(signed.bundle, document(decision))
    _same_policy(decision, files)
    verify(document(decision), signed.bundle, key, signed.checkpoint)
    in_time(decision, now)
    beyond = sorted(set(wanted) - set(decision.authority_limits))
    if beyond:
        raise GateRefused("this permission does not reach so far", got=", ".join(beyond),
                          why=f"it is limited to {', '.join(decision.authority_limits) or 'nothing'}",
                          fix="stay within it, or have it decided for more")


def _same_policy(decision: GateDecision, files: Mapping[str, str]) -> None:
    differing = sorted(name for name in {*files, *decision.files} if files.get(name) != decision.files.get(name))
    if differing or not files:
        how = {(True, False): "is missing", (False, True): "is not one of its files"}
        first = differing[0] if differing else "every file"
        what = how.get((first in decision.files, first in files), "differs" if differing else "is missing")
        raise GateRefused("this permission is for another policy", got=f"{first} {what} ({len(differing)} of "
                          f"{len({*files, *decision.files})} files)", why="it holds for the files it names, byte for byte",
                          fix="load the checkpoint that was decided about, or have this one decided")


def in_time(decision: GateDecision, now: datetime) -> None:
    """Refuses before the decision and from its expiry on; without readable times it never held."""
    try:
        decided, expires = moment(decision.decided or ""), moment(decision.expires or "")
    except RecordError as error:
        raise GateRefused("this permission does not say when it holds", got=error.got, why="a permission without an end is none",
                          fix="have it decided with an expiry") from error
    if now >= expires:
        raise GateRefused("this permission has expired", got=f"{stamp(now)}, it ended {stamp(expires)}",
                          why="what was known when it was decided grows old", fix="evaluate and decide again")
    if now < decided:
        raise GateRefused("this permission does not hold yet", got=f"{stamp(now)}, it was decided {stamp(decided)}",
                          why="it was dated ahead, or this clock is behind", fix="set the clock, or wait")
