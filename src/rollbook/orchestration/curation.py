"""A curation with what its stages need: verification in bounded workers, a sandbox, an embedding, graders and a chat model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from rollbook.environments.sandbox import CodeRunner, isolated_runner
from rollbook.evaluation.protocols import registered
from rollbook.models.load import Policy, load_policy
from rollbook.records import ChatModel, Fault, Request, Tokenizer, canonical, digest, encode
from rollbook.records.curation import CuratedSet, CurationStage
from rollbook.records.recipe import Pretrained
from rollbook.records.sandbox import Language, SolutionRunner
from rollbook.rewards import Failure, VerifierPool
from rollbook.rewards.boxes import last_box
from rollbook.rewards.judges import LocalChat, ServerChat
from rollbook.rewards.numbers import compare
from rollbook.rewards.verifiers.code import CodeVerifier, code_in
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.tasks import TaskError
from rollbook.tasks.curation import Candidate, Helpers, Pipeline, curate, load_pipeline
from rollbook.tasks.curation.asking import asked, reference_of
from rollbook.tasks.curation.consensus import CodeConsensus
from rollbook.tasks.curation.pipeline import Chat, Grader

Answer = str | Fault | None         # what a sample states, why there is no sample, or a sample that states nothing
VERIFY_SECONDS, VERIFY_WORKERS = 2.0, 2
ROWS_TOGETHER = 32          # rows that a grader answers between two writes of what it has


@dataclass(slots=True)
class Model:
    """A loaded model as it answers questions."""

    policy: Policy
    engine: EmbeddedEngine
    weights: str

    @classmethod
    def load(cls, path: str, context: int) -> Model:
        policy = load_policy(Pretrained(path=path, context=context))
        engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, decode=policy.tokenizer.decode)
        return cls(policy=policy, engine=engine, weights=engine.load(policy.decoder, 0))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.policy.tokenizer


class Tools:
    """Makes each helper when it is first used."""

    def __init__(self, pipeline: Pipeline, out: Path):
        self.pipeline, self.out = pipeline, out
        self.models: dict[tuple[str, int], Model] = {}
        self.runners: dict[str, CodeRunner] = {}

    @cached_property
    def pool(self) -> VerifierPool:
        return VerifierPool(workers=VERIFY_WORKERS, seconds=VERIFY_SECONDS)

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool | str]:
        """Numbers in this process, everything else in workers that can be killed."""
        found: dict[tuple[str, str], bool | str] = {}
        symbolic = []
        for pair in dict.fromkeys(pairs):
            known = compare(*pair) if pair[1].strip() else None
            if known is None:
                symbolic.append(pair)
            else:
                found[pair] = known
        for pair, outcome in zip(symbolic, self.pool.verify(symbolic), strict=True):
            found[pair] = outcome.code if isinstance(outcome, Failure) else outcome
        return [found[pair] for pair in pairs]

    @cached_property
    def embedder(self) -> Any:
        from rollbook.models.embedding import Embedder

        return Embedder()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self.embedder(texts))

    def model(self, path: str, context: int) -> Model:
        if (path, context) not in self.models:
            self.models[path, context] = Model.load(path, context)
        return self.models[path, context]

    def chat(self, settings: Chat) -> ChatModel:
        if settings.server is not None:
            return ServerChat(settings.server, settings.model)
        model = self.model(settings.model, settings.context)
        return LocalChat(model.engine, model.tokenizer, name=settings.model, weights=model.weights, context=settings.context,
                         seed=self.pipeline.seed)

    def solve(self, grader: str, rows: Sequence[Candidate], samples: int) -> list[Mapping[str, Any]]:
        """Every row's answers with what the verifier says of them. What was answered is kept, row by row, for a resumption."""
        settings = self.pipeline.graders[grader]
        model = self.model(settings.model, settings.context)
        named = digest(canonical({"grader": encode(settings), "weights": model.weights, "samples": samples,
                                  "seed": self.pipeline.seed}))[:16]
        file = self.out / "grades" / f"{grader}-{named}.jsonl"
        done = _answered(file)
        todo = [row for row in rows if row.digest().hex() not in done]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as kept:
            for start in range(0, len(todo), ROWS_TOGETHER):
                part = todo[start:start + ROWS_TOGETHER]
                for row, answers in zip(part, self._answers(settings, model, part, samples), strict=True):
                    done[row.digest().hex()] = answers
                    if not any(isinstance(answer, Fault) for answer in answers):
                        kept.write(canonical({"row": row.digest().hex(), "answers": answers}) + b"\n")
                kept.flush()
        return [self._graded(row, done[row.digest().hex()]) for row in rows]

    def _answers(self, settings: Grader, model: Model, rows: Sequence[Candidate], samples: int) -> list[list[Answer]]:
        requests = []
        for row in rows:
            prompt = model.tokenizer.prompt(asked(row, settings.system_prompt))
            requests += [Request(key=f"{row.digest().hex()}/{sample}", prompt_ids=prompt, max_tokens=settings.max_tokens,
                                 temperature=settings.temperature, top_p=1.0, top_k=0, min_p=0.0, seed=self.pipeline.seed)
                         for sample in range(samples)]
        done = model.engine.sample(requests)
        said = [one.fault if one.fault is not None else _stated(rows[place // samples], model.tokenizer.decode(one.token_ids))
                for place, one in enumerate(done)]
        return [said[place * samples:(place + 1) * samples] for place in range(len(rows))]

    def _graded(self, row: Candidate, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Answers with their verdicts; no box and no code block is a wrong answer. An undecided comparison is none, as is what
        the engine could not answer: they are `unscored`, by reason."""
        stated = [answer for answer in answers if isinstance(answer, str)]
        verdicts = iter(self._ran(row, stated) if row.kind == "code" else
                        self.equal([(answer, reference_of(row) or "") for answer in stated]))
        passed: list[bool | None] = []
        unscored: Counter[str] = Counter()
        for answer in answers:
            outcome = False if answer is None else f"fault: {answer.code}" if isinstance(answer, Fault) else next(verdicts)
            passed.append(outcome if isinstance(outcome, bool) else None)
            unscored.update([outcome] if isinstance(outcome, str) else [])
        given = [None if isinstance(answer, Fault) else answer for answer in answers]
        return {"answers": given, "passed": passed} | ({"unscored": dict(unscored)} if unscored else {})

    def _ran(self, row: Candidate, sources: Sequence[str]) -> list[bool | str]:
        """Whether each program passes all tests of a row; why that is unknown where it is."""
        reference = reference_of(row)
        if reference is None or not sources:
            return ["no_reference"] * len(sources)
        language = str(row.more.get("language") or "python")
        verifier = CodeVerifier(self.runner(language))
        found = verifier.judge([(f"```{language}\n{source}\n```", json.loads(reference)) for source in sources])
        return [one.code if isinstance(one, Failure) else one.passed for one in found]

    def runner(self, language: str) -> SolutionRunner:
        """The sandbox for a language, made when it is first needed."""
        if language not in get_args(Language):
            raise TaskError("no sandbox here runs this language", got=language, fix=f"of {', '.join(get_args(Language))}")
        if language not in self.runners:
            self.runners[language] = isolated_runner((language,))       # type: ignore[arg-type]
        return self.runners[language]

    def close(self) -> None:
        """Ends the processes that were started."""
        if "pool" in self.__dict__:
            self.pool.close()
        for one in self.runners.values():
            one.close()


def _stated(row: Candidate, text: str) -> str | None:
    """What a response states: its last box, or its first code block; None where there is none."""
    if row.kind == "code":
        return code_in(text, str(row.more.get("language") or "python"), "first")
    return last_box(text).answer


def run_curation(file: Path, out: Path | None, told: Any) -> tuple[CuratedSet, Path]:
    """The task set of a curation file, made or completed; returns it with its folder."""
    pipeline = load_pipeline(file)
    folder = out or Path("tasks") / pipeline.name
    with helpers(pipeline, file.parent, folder) as made:
        return curate(pipeline, made, folder, told), folder


@contextmanager
def helpers(pipeline: Pipeline, start: Path, out: Path) -> Iterator[Helpers]:
    """What the pipeline's stages may ask for; ends its processes."""
    tools = Tools(pipeline, out)
    with ExitStack() as stack:
        stack.callback(tools.close)
        made = Helpers(folder=start, registered=_registered(), equal=tools.equal, embed=tools.embed, solve=tools.solve)
        languages = dict.fromkeys(one for stage in pipeline.stages if isinstance(stage, CodeConsensus) for one in stage.languages)
        if languages:
            runner = isolated_runner(tuple(languages))
            stack.callback(runner.close)
            made = replace(made, runner=runner)
        if pipeline.chat is not None:
            made = replace(made, chat=tools.chat(pipeline.chat))
        yield made


def _registered() -> dict[str, list[str]]:
    """The problems of every registered evaluation protocol."""
    return {f"{bundle.protocol.name}/{bundle.id[:12]}": [task.prompt[-1].content for task in bundle.side.tasks]
            for bundle in registered()}


def _answered(file: Path) -> dict[str, list[Answer]]:
    """What a grader has already answered; a last line that was cut is left out."""
    found: dict[str, list[Answer]] = {}
    if file.exists():
        whole = file.read_bytes()
        lines = whole.split(b"\n")
        if lines[-1]:
            file.write_bytes(whole[:len(whole) - len(lines[-1])])
        for line in lines[:-1]:
            row = json.loads(line)
            found[row["row"]] = row["answers"]
    return found


__all__ = ["CurationStage", "helpers", "run_curation"]
