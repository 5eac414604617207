"""Stage 4: environment. Could a verdict depend on a package, a web page or the clock, and was that tried?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rollbook.audit.detector import Detector, Row
from rollbook.audit.index import RunIndex
from rollbook.environments import single_turn_image
from rollbook.records import Composition, EnvironmentImage, EnvironmentProof, ProtocolBundle, Scored, Task, Trial, VerifierStamp
from rollbook.records.recipe import RewardModel
from rollbook.rewards import package_versions
from rollbook.rewards.rescore import prompts_hash

KINDS = ("build", "reset", "clock", "network", "packages")
LEAST = 12          # texts that must have been judged under a changed condition, or three for every task of a smaller run
SINGLE_TURN = "single_turn"
PIN = "pin what it depends on, prove the environment again and judge again"


class EnvironmentDetector(Detector):
    """Every environment and judge that was used was proved: same build, same observations, same verdicts, whatever changed."""

    stage, name = 4, "environment"
    absent = "the run names no environment"

    def __init__(self) -> None:
        super().__init__()
        self.images: dict[str, EnvironmentImage] = {}
        self.proofs: dict[str, EnvironmentProof] = {}
        self.stamps: dict[str, VerifierStamp] = {}
        self.bundles: dict[str, ProtocolBundle] = {}
        self.judges: dict[str, str] = {}            # digest of a judge -> the first verdict by it
        self.train: list[Task] = []
        self.judged = False

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case EnvironmentImage():
                self.images[identity] = record
            case EnvironmentProof():
                self.proofs[identity] = record
                if record.judge in self.judges:
                    self.fail(identity, f"it was made after {self.judges[record.judge]} had been judged",
                              "prove the environment before the first attempt")
            case Composition():
                name, _, version = record.name.partition("/")
                self.stamps[record.digest] = VerifierStamp(name=name, version=version, digest=record.digest)
            case ProtocolBundle():
                self.bundles[identity] = record
            case Task() if run.table == "tasks/train" and len(self.train) < 4 * LEAST:
                self.train.append(record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        if isinstance(row.verdict, Scored):
            self.judges.setdefault(row.verdict.vector.composition_digest, row.id)

    def finish(self, run: RunIndex) -> None:
        used = bool(self.judges or self.bundles)
        for identity, image in self.images.items():
            self.checked()
            self._image(run, identity, image)
            if (used or run.complete) and not any(proof.environment == identity for proof in self.proofs.values()):
                self.fail(identity, f"the environment {image.name} was used without a proof that it can be built and reset twice",
                          "prove the environment before the first attempt")
        for identity, proof in self.proofs.items():
            self.checked(len(proof.trials))
            for evidence in self._faults(proof):
                self.fail(identity, evidence, PIN)
            for name, reason in proof.unproved.items():
                self.note(f"unproved: {name} ({reason})")
                image = self.images.get(proof.environment)
                anywhere = image is not None and (image.name == SINGLE_TURN or name != "network" or image.network == "none")
                if anywhere and not _by_model(run, reason):
                    self.fail(identity, f"the trial of {name} was left out ({reason}); by its image it can be made anywhere", PIN)
        if used and not self.images and run.recipe is not None:
            self.fail("EnvironmentImage", "texts were judged, and no environment is on record",
                      "record and prove the environment")
        self._names(run)

    def _image(self, run: RunIndex, identity: str, image: EnvironmentImage) -> None:
        packages = run.ledger.manifest.get("packages", {})
        for name, version in image.dependencies.items():
            stated = packages.get(name) if isinstance(packages, Mapping) else None
            if stated is not None and stated != version:
                self.fail(identity, f"it depends on {name} {version}, and the run's manifest has {name} {stated}",
                          "build the image from the packages that judge")
        lacking = sorted(package_versions().keys() - image.dependencies.keys()) if image.name == SINGLE_TURN else []
        if not image.dependencies or lacking:
            self.fail(identity, f"its verdicts depend on {', '.join(lacking) or 'packages'} and it names none of them", PIN)
        if image.name == SINGLE_TURN and image.network != "none":
            self.fail(identity, f"its network policy is {image.network}, a single turn needs no network", PIN)
        scaffolds = {envelope.scaffold.partition("/")[0] for envelope in run.envelopes.values()}
        if scaffolds == {SINGLE_TURN} and image.name != SINGLE_TURN:
            self.fail(identity, f"it is called {image.name}, and every attempt was a single turn",
                      "name the environment that was used")
        if image.network == "open":
            self.note(f"the network of {image.name} is open: only the trial without it says that verdicts need none")
        if image.name == SINGLE_TURN and self.stamps:
            built = [single_turn_image(verifier=stamp, dependencies=image.dependencies) for stamp in self.stamps.values()]
            if image.digest not in {one.digest for one in built}:
                self.fail(identity, f"its digest {image.digest[:12]} does not follow from its dependencies and the judge",
                          "hash everything that an observation or verdict depends on into the image")
            elif image not in built and image.network == "none":
                unlike = [name for name in EnvironmentImage.__slots__ if getattr(image, name) != getattr(built[0], name)]
                self.fail(identity, f"its {', '.join(n for n in unlike if n != 'digest')} are not those of a single turn: "
                          f"{[getattr(image, n) for n in unlike if n != 'digest']}", PIN)

    def _names(self, run: RunIndex) -> None:
        """Judges and environments that were used are those that were proved."""
        proved = {proof.judge for proof in self.proofs.values()}
        for digest, trace in self.judges.items():
            if self.proofs and digest not in proved:
                self.fail(trace, f"its verdict is by the judge {digest[:12]}, which no proof covers", PIN)
        for identity, bundle in self.bundles.items():
            if self.images and bundle.environment not in self.images:
                self.fail(identity, f"it names the environment {bundle.environment[:40]}, which is not on record",
                          "record the image of every environment")
            elif self.proofs and bundle.verifier not in proved:
                self.fail(identity, f"it names the verifier {bundle.verifier[:12]}, which no proof covers", PIN)

    def _faults(self, proof: EnvironmentProof) -> Iterator[str]:
        """What is wrong with a proof."""
        image = self.images.get(proof.environment)
        if image is None:
            yield f"it proves {proof.environment[:40]}, which is not an environment of this run"
            return
        yield from (f"under the trial {trial.kind} ({trial.changed}) {trial.items} items came out as {trial.first[:12]} and "
                    f"{trial.second[:12]}" for trial in proof.trials if trial.first != trial.second)
        least = min(LEAST, 3 * len(self.train)) if self.train else 1
        for kind in KINDS:
            made = [trial for trial in proof.trials if trial.kind == kind]
            if not made and kind not in proof.unproved:
                yield f"it has no trial of the kind {kind}, and no reason why not"
            elif made and max(trial.items for trial in made) < (1 if kind == "build" else least):
                yield f"its trials of the kind {kind} cover {max(trial.items for trial in made)} items, fewer than {least}"
        yield from self._substance(proof, image, least)

    def _substance(self, proof: EnvironmentProof, image: EnvironmentImage, least: int) -> Iterator[str]:
        """Whether the trials are about this image, this judge and these tasks, and could have come out differently."""
        builds = {trial.first for trial in proof.trials if trial.kind == "build"}
        if builds and not {image.digest, proof.judge} <= builds:
            yield "its builds are of another image or judge than the run's"
        counts = proof.verdicts
        if "clock" not in proof.unproved and (counts.get("right", 0) == 0 or counts.get("wrong", 0) == 0):
            shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
            yield f"its texts do not tell a judge from none: verdicts {shown}, at least one right and one wrong are needed"
        if sum(counts.values()) < least:
            yield f"it counts {sum(counts.values())} verdicts, fewer than {least}"
        first = {trial.first for trial in proof.trials if trial.kind == "reset"}
        if first and self.train and not first & _prompts(self.train, proof.trials):
            yield "its reset shows other prompts than those of the first training tasks"
        ordinary = {kind: {trial.first for trial in proof.trials if trial.kind == kind} for kind in KINDS[2:]}
        if len({frozenset(found) for found in ordinary.values() if found}) > 1:
            yield "its trials do not start from the same verdicts"


def _prompts(train: Sequence[Task], trials: Sequence[Trial]) -> set[str]:
    """Hashes of the first training tasks' prompts, each three times, for as many items as a reset showed."""
    sizes = {trial.items for trial in trials if trial.kind == "reset"}
    return {prompts_hash([task for task in train[:size // 3] for _ in range(3)]) for size in sizes}


def _by_model(run: RunIndex, reason: str) -> bool:
    """Whether what was left out is measured by a reward model that a stage of this run trains: no fresh process holds it."""
    stages = run.recipe.settings.stages if run.recipe is not None else {}
    return any(isinstance(stages.get(name), RewardModel) for name in re.findall(r"model:([\w.\-]+)", reason))
