"""Stage 14: is offline success mistaken for permission?

An `allow` must be signed over exactly the policy it names, keep every rule of the gate given what the run held when it was
made, and still be about the files that lie there. Whether its key is to be trusted is the reader's to say.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rollbook.audit.detector import Detector
from rollbook.audit.index import RunIndex
from rollbook.evaluation.gate import Ground, breaches, document, evaluations, measure, moment, policy_files, refused
from rollbook.evaluation.signing import GateRefused, KeyRefused, SigningUnavailable, covers, fingerprint, verify
from rollbook.models.weights import stored_hash
from rollbook.records import GateDecision, Incident, LedgerError, ModelError, PolicyVersion, RecordError, RunEnd, StageEnd

AGAIN = "take the permission back with a signed refusal, then have the policy decided again"


class GateDetector(Detector):
    """Judges every decision by what the run held when it was made."""

    stage, name = 14, "gate"
    absent = "no decision is on record: no permission was claimed"

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[StageEnd] = []
        self.undecided = 0
        self.latest: dict[str, datetime] = {}
        self.seen: set[str] = set()
        self.allowed = False
        self.decisions: list[GateDecision] = []
        self.incidents: dict[str, Incident] = {}

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case StageEnd():
                self.ends.append(record)
            case GateDecision() if record.decision == "undecided":
                self.undecided += 1
            case GateDecision():
                self.checked()
                self._decision(run, identity, record)
                self.decisions.append(record)
            case Incident():
                self.checked()
                self._incident(run, identity, record)
            case PolicyVersion() if self.allowed:
                self.note(f"version {record.index} was published after a permission, which does not speak for it")
            case RunEnd():
                if self.allowed:
                    self.note("the permission was given before the run ended")
            case _:
                pass

    def finish(self, run: RunIndex) -> None:
        for identity, incident in self.incidents.items():
            if incident.action == "rollback" and not any(_answers(one, incident) for one in self.decisions):
                self.fail(identity, f"the {incident.severity} incident of {incident.reported} took the permission of "
                          f"{incident.weights[:12]} back, and no decision since refuses it", AGAIN)
        if not self.examined and self.undecided:
            self.note("no permission was claimed: the run's policy is undecided")

    def _decision(self, run: RunIndex, identity: str, decision: GateDecision) -> None:
        ground = self._ground(run)
        for breach in breaches(decision, ground):
            self.fail(identity, f"a decision to {decision.decision}: {breach.evidence}", breach.remedy)
        self._order(identity, decision)
        if decision.decision != "refuse":
            self._files(run, identity, decision)
        signer = self._signer(run, identity, decision)
        if decision.decision == "refuse":
            self.note(f"refused: version {_index(ground, decision)}, {signer}")
            return
        self.allowed = True
        self.note(self._said(decision, ground, signer))

    def _incident(self, run: RunIndex, identity: str, incident: Incident) -> None:
        """An incident is about a policy of this run, and stays on record for what is decided after it."""
        self.incidents[identity] = incident
        if all(version.weights != incident.weights for version in run.versions.values()):
            self.fail(identity, f"it is about weights {incident.weights[:12]}, which this run did not publish",
                      "report an incident on the run whose policy it was")
        self.note(f"{incident.severity} incident of {incident.reported} with {incident.weights[:12]}: {incident.what[:80]} "
                  f"({incident.action})")

    def _ground(self, run: RunIndex) -> Ground:
        versions = {identity: run.versions[index] for identity, index in run.version_ids.items()}
        kept = {end.ended for end in self.ends if end.checkpoint is not None}
        kept |= {identity for identity, version in versions.items() if version.index == 0}
        return Ground(versions=versions, kept=kept, reports=run.reports, protocols=run.protocols, tasks=run.tasks,
                      refused=refused(self.decisions, self.incidents.values()))

    def _order(self, identity: str, decision: GateDecision) -> None:
        """Decisions about one policy go forward in time: an older one put on record again would undo a refusal."""
        try:
            when = moment(decision.decided or "")
        except RecordError:
            return
        before = self.latest.get(decision.policy)
        if identity in self.seen or (before is not None and when < before):
            self.fail(identity, f"a decision made {decision.decided} stands on record again, or behind a later one about this "
                                f"policy", AGAIN)
        self.seen.add(identity)
        self.latest[decision.policy] = max(when, before or when)

    def _signer(self, run: RunIndex, identity: str, decision: GateDecision) -> str:
        """Who signed, in words; a signature that is missing or does not hold fails the row."""
        if decision.signature is None or decision.public_key is None:
            if decision.decision == "allow":
                self.fail(identity, "a decision to allow is not signed", "have it decided and signed: `rollbook gate decide`")
            return "not signed"
        try:
            key = run.ledger.get(decision.public_key)
            bundle, checkpoint = run.ledger.get(decision.signature), self._checkpoint(run, decision)
            if covers(bundle, document(decision)) and checkpoint is None:
                return f"names the key {fingerprint(key)}, not verified: the files that it also signs are not here"
            verify(document(decision), bundle, key, checkpoint)
            return f"signed with key {fingerprint(key)} (whether to trust it is yours to say)"
        except SigningUnavailable as error:
            if decision.decision == "allow":
                self.fail(identity, "the signature of a decision to allow cannot be verified: model-signing is not installed",
                          error.fix or "")
            return "signature not verified"
        except (GateRefused, KeyRefused, LedgerError) as error:
            self.fail(identity, f"{error.what} ({error.got})", error.fix or AGAIN)
            return "signature refused"

    def _checkpoint(self, run: RunIndex, decision: GateDecision) -> Path | None:
        """Where the files of a decision lie, None where they are not here."""
        folder = next((end.checkpoint for end in reversed(self.ends) if end.ended == decision.policy and end.checkpoint), None)
        place = Path(run.ledger.root) / folder if folder is not None else None
        return place if place is not None and place.is_dir() else None

    def _files(self, run: RunIndex, identity: str, decision: GateDecision) -> None:
        """The files of the decision against the checkpoint that lies in the run, and its weights against the policy's."""
        folder = next((end.checkpoint for end in reversed(self.ends) if end.ended == decision.policy and end.checkpoint), None)
        if folder is None:
            return self.fail(identity, "the run kept no checkpoint of the policy that it allows", AGAIN)
        place = Path(run.ledger.root) / folder
        if not place.is_dir():
            return self.note(f"the files of {folder} are not here to be compared")
        found = policy_files(place)
        differing = sorted(name for name in {*found, *decision.files} if found.get(name) != decision.files.get(name))
        if differing:
            return self.fail(identity, f"{len(differing)} files of {folder} are not those that were decided about, first "
                                       f"{differing[0]}", "restore the checkpoint from a copy of the run, or decide again")
        try:
            weights = stored_hash(place)
        except ModelError as error:
            return self.fail(identity, f"the files it names hold no weights that can be read ({error.got})", AGAIN)
        if weights != decision.weights:
            self.fail(identity, f"the files it names hold weights {weights[:12]}, it allows {decision.weights[:12]}", AGAIN)
        return None

    def _said(self, decision: GateDecision, ground: Ground, signer: str) -> str:
        """The permission in words, each threshold beside what was measured."""
        held = evaluations(decision.policy, decision.weights, ground.reports).values()
        values = {name: measure(name, held, ground) for name in decision.thresholds}
        met = ", ".join(f"{name} {values[name]:.4f} >= {least:g}" for name, least in sorted(decision.thresholds.items())
                        if values[name] is not None)
        limits = ", ".join(decision.authority_limits)
        said = [f"version {_index(ground, decision)} allowed for {limits} until {decision.expires}", met,
                f"canary: {decision.canary}", f"back to {(decision.rollback or '')[:12]}", signer]
        if not _compared(decision, ground):
            said.append("no earlier policy was evaluated under the same protocol, so that regressions are unknown")
        if not (decision.incidents or "").strip():
            said.append("no place for incidents is named")
        return ", ".join(part for part in said if part)


def _answers(decision: GateDecision, incident: Incident) -> bool:
    """Whether a decision about the same weights was made since an incident."""
    return decision.weights == incident.weights and (decision.decided or "") >= incident.reported


def _index(ground: Ground, decision: GateDecision) -> str:
    version = ground.versions.get(decision.policy)
    return "unknown" if version is None else str(version.index)


def _compared(decision: GateDecision, ground: Ground) -> bool:
    """Whether another policy was evaluated under a protocol of this one."""
    mine = {report.protocol for report in evaluations(decision.policy, decision.weights, ground.reports).values()}
    return any(report.protocol in mine and report.weights != decision.weights for report in ground.reports.values())
