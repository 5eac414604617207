"""Deciding about a policy of a finished run: what the run holds, the rules, the signature, the record."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rollbook.evaluation.gate import (
    Ground,
    Signed,
    breaches,
    check_gate,
    document,
    evaluations,
    in_time,
    moment,
    policy_files,
    refused,
    stamp,
    undecided,
)
from rollbook.evaluation.signing import GateRefused, public_key, sign
from rollbook.ledger import Ledger
from rollbook.models.load import Policy, read_policy
from rollbook.models.weights import read_tensors, weight_hash
from rollbook.records import (
    EvalReport,
    GateDecision,
    Incident,
    LedgerError,
    PolicyVersion,
    ProtocolBundle,
    RecordError,
    RunEnd,
    StageEnd,
    Task,
    content_id,
    decode,
)
from rollbook.records.evaluation import INCIDENT_ACTIONS
from rollbook.records.graph import START


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants decided. `stage` names whose policy (None: the last one's), `rollback` a stage or a weight hash.

    Example: Wish(decision="allow", stage=None, thresholds={"heldout": 0.4}, owners={}, limits=("serve-internal",),
        canary="1% of traffic", rollback="cold_start", incidents=None, expires="2027-03-01")
    """

    decision: Literal["allow", "refuse"]
    stage: str | None
    thresholds: Mapping[str, float]
    owners: Mapping[str, str]
    limits: tuple[str, ...]
    canary: str | None
    rollback: str | None
    incidents: str | None
    expires: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a finished run holds: its ground for decisions, the version each stage ended with, the folders of checkpoints."""

    ground: Ground
    ended: Mapping[str, PolicyVersion]
    checkpoints: Mapping[str, str]

    def version(self, stage: str | None) -> PolicyVersion:
        """The policy that a stage ended with, the last stage's for None."""
        name = list(self.ended)[-1] if stage is None else stage
        if name not in self.ended:
            raise RecordError("no stage of this run has this name", got=repr(name), fix=f"one of {', '.join(self.ended)}")
        return self.ended[name]


def finished(ledger: Ledger) -> Finished:
    """Reads what a decision rests on; refuses a run that has not ended."""
    if not any(end.status == "completed" for end in ledger.records(RunEnd)):
        raise LedgerError("this run is not complete", got=ledger.root.name,
                          why="to go on with it would take back a decision made now", fix=f"rollbook resume {ledger.root}")
    versions = {version.id: version for version in ledger.records(PolicyVersion)}
    ends = list(ledger.records(StageEnd))
    start = next((version for version in versions.values() if version.index == 0), None)
    if start is None or not ends:
        raise LedgerError("this run holds no policy that could be decided about", got="no stage that ended",
                          why="a permission is for weights that a run published")
    ground = Ground(versions=versions, kept={start.id, *(end.ended for end in ends if end.checkpoint is not None)},
                    reports={content_id(report): report for report in ledger.records(EvalReport)},
                    protocols={content_id(bundle): bundle for bundle in ledger.records(ProtocolBundle)},
                    tasks={task.id: task for task in ledger.records(Task)},
                    refused=refused(ledger.records(GateDecision), ledger.records(Incident)))
    return Finished(ground=ground, ended={START: start, **{end.stage: versions[end.ended] for end in ends}},
                    checkpoints={end.ended: end.checkpoint for end in ends if end.checkpoint is not None})


def decide(run: Path, wish: Wish, *, private_key: Path, now: datetime) -> GateDecision:
    """The decision, signed and recorded; an `allow` that breaks rules is refused with all of them, and nothing is written."""
    with Ledger.open(run) as ledger:
        held = finished(ledger)
        drafted = draft(held, ledger.root, wish, now)
        _check_order(ledger, drafted)
        broken = breaches(drafted, held.ground)
        if broken:
            raise GateRefused("this decision cannot be made",
                              got="; ".join(one.evidence for one in broken), why="the rules of the gate are not kept",
                              fix="; ".join(dict.fromkeys(one.remedy for one in broken)))
        folder = held.checkpoints.get(drafted.policy)
        decision = signed(ledger, drafted, private_key, ledger.root / folder if folder is not None else None)
        ledger.append(decision)
        return decision


def draft(held: Finished, root: Path, wish: Wish, now: datetime) -> GateDecision:
    """The decision before it is signed, with the hash of every file of the policy's checkpoint."""
    policy = held.version(wish.stage)
    folder = held.checkpoints.get(policy.id)
    return replace(undecided(policy), decision=wish.decision, files=_checked_files(root / folder, policy) if folder else {},
                   thresholds=dict(wish.thresholds), regression_owners=dict(wish.owners), authority_limits=wish.limits,
                   reports=tuple(evaluations(policy.id, policy.weights, held.ground.reports)), canary=wish.canary,
                   rollback=_rollback(held, wish.rollback), incidents=wish.incidents, decided=stamp(now),
                   expires=None if wish.expires is None else stamp(moment(wish.expires)))


def signed(ledger: Ledger, decision: GateDecision, private_key: Path, checkpoint: Path | None = None) -> GateDecision:
    """The decision with its signature, over it and the files of its checkpoint; bundle and public key are objects of the run."""
    named = replace(decision, public_key=ledger.put(public_key(private_key)))
    return replace(named, signature=ledger.put(sign(document(named), private_key, checkpoint)))


def check(run: Path, stage: str | None, *, key: bytes, now: datetime, wanted: Collection[str]) -> GateDecision:
    """The last decision about a stage's policy, if it permits what is wanted with the checkpoint as it lies there now."""
    ledger = Ledger.open(run, write=False)
    held = finished(ledger)
    policy = held.version(stage)
    decision = _last(ledger, policy.id)
    if decision is None:
        raise GateRefused("this policy has no permission", got="no decision about it", why="a good evaluation permits nothing",
                          fix="have it decided: `rollbook gate decide`")
    bundle = None if decision.signature is None else ledger.get(decision.signature)
    folder = held.checkpoints.get(policy.id)
    place = None if folder is None else ledger.root / folder
    files = {} if place is None else policy_files(place)
    check_gate(Signed(decision=decision, bundle=bundle, checkpoint=place), files, key=key, now=now, wanted=wanted)
    _no_incident(ledger, decision)
    return decision


def renewed(run: Path, stage: str | None, held: GateDecision, *, key: bytes, now: datetime,
            wanted: Collection[str]) -> GateDecision:
    """The decision under which a stage's policy is in use from now on; refuses once it has ended or was taken back.

    Signature and files were checked when the policy was loaded; another decision than `held` is checked as a whole.
    """
    ledger = Ledger.open(run, write=False)
    last = _last(ledger, held.policy)
    if last is None or content_id(last) != content_id(held):
        return check(run, stage, key=key, now=now, wanted=wanted)
    in_time(held, now)
    _no_incident(ledger, held)
    return held


def _no_incident(ledger: Ledger, decision: GateDecision) -> None:
    """Refuses a permission that an incident took back after it was given."""
    for incident in ledger.records(Incident):
        later = incident.reported >= (decision.decided or "")
        if incident.weights == decision.weights and incident.action == "rollback" and later:
            raise GateRefused("this permission was taken back", got=f"{incident.severity} incident of {incident.reported}: "
                              f"{incident.what[:200]}", why=f"{incident.reporter} rolled the policy back",
                              fix=f"use the weights {(decision.rollback or 'of an earlier policy')[:16]}, or decide again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """An incident on record, with what to go back to where it took a permission back."""

    incident: Incident
    rollback: str | None
    stage: str | None


def report_incident(run: Path, stage: str | None, told: Mapping[str, str], *, now: datetime,
                    private_key: Path | None) -> Reported:
    """Records an incident with a stage's policy. A `rollback` is signed: it refuses the policy and says what to go back to."""
    action = told["action"]
    if action not in INCIDENT_ACTIONS or not told["what"].strip() or not told["reporter"].strip():
        raise RecordError("an incident says what happened, who reports it, and what is done", got=str(dict(told))[:200],
                          fix=f"--what and --reporter; the action is one of {', '.join(INCIDENT_ACTIONS)}")
    with Ledger.open(run) as ledger:
        held = finished(ledger)
        policy = held.version(stage)
        incident = decode(Incident, {**told, "weights": policy.weights, "reported": stamp(now)}, "incident")
        if action != "rollback":
            ledger.append(incident)
            return Reported(incident=incident, rollback=None, stage=None)
        before = _last(ledger, policy.id)
        if private_key is None or before is None or before.decision != "allow":
            raise GateRefused("a rollback takes a permission back, with a signature",
                              got="no key" if private_key is None else "no permission stands",
                              why="what is served changes by it",
                              fix="--key, and a policy that is allowed; or leave --rollback out")
        refusal = replace(undecided(policy), decision="refuse", files=before.files, decided=stamp(now), rollback=before.rollback,
                          incidents=before.incidents)
        _check_order(ledger, refusal)
        folder = held.checkpoints.get(policy.id)
        made = signed(ledger, refusal, private_key, None if folder is None else ledger.root / folder)
        ledger.append_many([incident, made])
        back = next((name for name, version in held.ended.items() if version.weights == before.rollback), None)
        return Reported(incident=incident, rollback=before.rollback, stage=back)


def load_policy(run: Path, stage: str | None = None, *, require_gate: bool, key: bytes | None = None,
                wanted: Collection[str] = (), now: datetime | None = None) -> Policy:
    """The policy that a stage ended with. With `require_gate` only one whose signed permission covers what is wanted now, which
    must be named, and whose weights, as they were read, are the permitted ones."""
    decision: GateDecision | None = None
    if require_gate:
        if key is None:
            raise GateRefused("a permission is checked with a public key", got="no key", why="anyone could have signed it",
                              fix="give the key that you trust")
        decision = check(run, stage, key=key, now=now or datetime.now(UTC), wanted=wanted)
        if not wanted:
            raise GateRefused("what the policy is loaded for must be named", got="no use",
                              why=f"this permission is limited to {', '.join(decision.authority_limits)}",
                              fix="name it: wanted=(...), or --for on the command line")
    ledger = Ledger.open(run, write=False)
    held = finished(ledger)
    version = held.version(stage)
    folder = held.checkpoints.get(version.id)
    if folder is None:
        raise LedgerError("the weights of this policy were not kept", got=f"{ledger.root.name}:{stage}",
                          why="only what a stage trained leaves a checkpoint", fix="name a stage that trains")
    policy = read_policy(ledger.root / folder, source=f"{ledger.root.name}:{stage or version.stage}")
    found = weight_hash(policy.decoder.named_parameters())
    if found != version.weights or (decision is not None and found != decision.weights):
        raise GateRefused("the weights that were read are not the permitted ones", got=found[:16],
                          why="the checkpoint changed while it was read", fix="restore it from a copy of the run")
    return policy


def _last(ledger: Ledger, policy: str) -> GateDecision | None:
    """The decision about a policy that was made last; an older one that is put on record again does not count."""
    made = [decision for decision in ledger.records(GateDecision) if decision.policy == policy]
    return max(reversed(made), key=lambda one: one.decided or "", default=None)


def _check_order(ledger: Ledger, drafted: GateDecision) -> None:
    before = _last(ledger, drafted.policy)
    if before is not None and (before.decided or "") > (drafted.decided or ""):
        raise GateRefused("this decision would be older than one on record", got=f"{drafted.decided} after {before.decided}",
                          why="the decision that was made last counts", fix="set this machine's clock")


def _checked_files(folder: Path, policy: PolicyVersion) -> dict[str, str]:
    """The files of a checkpoint, once it is sure that they hold the weights that were published."""
    files = policy_files(folder)
    found = weight_hash(read_tensors(folder).items())
    if found != policy.weights:
        raise LedgerError(f"the checkpoint {folder.name} is not the policy that was published",
                          got=f"weights {found[:12]} for {policy.weights[:12]}", why="it was changed after the run",
                          fix="restore it from a copy of the run")
    return files


def _rollback(held: Finished, name: str | None) -> str | None:
    return held.ended[name].weights if name is not None and name in held.ended else name


def named_values(items: Collection[str], what: str) -> dict[str, str]:
    """`NAME=VALUE` items as a mapping."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value) or name in found:
            raise RecordError(f"{what} is written NAME=VALUE, each name once", got=repr(item), fix=f"{what} name=value")
        found[name] = value
    return found


def numbers(items: Collection[str], what: str) -> dict[str, float]:
    """`NAME=NUMBER` items as a mapping of finite numbers."""
    found: dict[str, float] = {}
    for name, text in named_values(items, what).items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise RecordError(f"{what} {name} must be a number", got=repr(text), fix=f"{what} {name}=0.4")
    return found
