"""Which judge a stage uses: the recipe's default, or one of its named rewards, made and proved before its first verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollbook.environments import single_turn_image
from rollbook.environments.sandbox import CodeRunner, isolated_runner
from rollbook.models.load import load_policy
from rollbook.orchestration.proof import prove
from rollbook.records import ChatModel, Composition, EnvironmentImage, RecipeError, content_id
from rollbook.records.composition import ComposedReward
from rollbook.records.ready_made import NamedReward
from rollbook.records.recipe import EnvironmentReward, JudgeSettings, Pretrained, Reward, RewardSettings, Settings
from rollbook.rewards import EnvironmentJudge, MagistralJudge, package_versions
from rollbook.rewards.composed import ComposedJudge
from rollbook.rewards.composed.judge import checked
from rollbook.rewards.composed.measures import Sources, check_settings, part_languages
from rollbook.rewards.judges import LocalChat, PairwiseJudge, PairwiseScorer, RubricJudge, ServerChat
from rollbook.rollouts.engines.embedded import EmbeddedEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollbook.orchestration.session import JudgeWithStamp, Session
    from rollbook.orchestration.surroundings import Surroundings
    from rollbook.records import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """A judge with the image of the environment that it makes of a single turn."""

    judge: JudgeWithStamp
    image: EnvironmentImage


def measured_by(reward: ComposedReward | NamedReward) -> list[str]:
    """The stages whose reward models measure a reward."""
    measures = [part.measure for part in checked(reward).parts.values()]
    return sorted({measure.removeprefix("model:") for measure in measures if measure.startswith("model:")})


def written_judges(reward: Reward, judges: Mapping[str, JudgeSettings]) -> dict[str, Scorer]:
    """The judges of the recipe that measure parts of a reward; each loads its model once."""
    if not isinstance(reward, (ComposedReward, NamedReward)):
        return {}
    wanted = {part.measure.removeprefix("judge:") for part in checked(reward).parts.values() if part.measure.startswith("judge:")}
    return {f"judge:{name}": _judge(settings) for name, settings in judges.items() if name in wanted}


def _judge(settings: JudgeSettings) -> Scorer:
    chat = chat_model(settings.model, settings.server, settings.context)
    if settings.form == "pairwise":
        return PairwiseScorer(PairwiseJudge(chat, method=settings.method), with_reference=settings.with_reference)
    return RubricJudge(chat, settings.criteria, low=settings.low, high=settings.high, method=settings.method,
                       with_reference=settings.with_reference)


def chat_model(model: str, server: str | None, context: int) -> ChatModel:
    """A model that is asked in words: behind a server, or loaded into an engine of its own."""
    if server is not None:
        return ServerChat(server, model)
    policy = load_policy(Pretrained(path=model, context=context))
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, decode=policy.tokenizer.decode)
    return LocalChat(engine, policy.tokenizer, name=model, weights=engine.load(policy.decoder, 0), context=context)


class WithRunner(ComposedJudge):
    """A composed judge that ends the sandbox it was made with."""

    def close(self) -> None:
        super().close()
        if isinstance(self.sources.runner, CodeRunner):
            self.sources.runner.close()


def make_judge(reward: Reward, scorers: Mapping[str, Scorer]) -> JudgeWithStamp:
    """The judge of a reward; a sandbox is started where it runs code."""
    if isinstance(reward, RewardSettings):
        return MagistralJudge(reward)
    if isinstance(reward, EnvironmentReward):
        raise RecipeError("an environment's verifier judges a whole run", got="EnvironmentReward without an environment",
                          fix="choose another reward, or give the recipe an environment")
    runs = [part for part in checked(reward).parts.values() if part.measure in ("code", "code_fraction")]
    if not runs:
        return ComposedJudge(reward, Sources(scorers=scorers))
    languages = dict.fromkeys(language for part in runs for language in part_languages(part))
    return WithRunner(reward, Sources(scorers=scorers, runner=isolated_runner(tuple(languages))))


def check_rewards(settings: Settings) -> None:
    """Refuses a reward whose parts have settings that their verifiers do not; RewardError."""
    for reward in (settings.reward, *settings.rewards.values()):
        if isinstance(reward, (ComposedReward, NamedReward)):
            for name, part in checked(reward).parts.items():
                check_settings(name, part)


def default_judging(reward: Reward, judges: Mapping[str, JudgeSettings], around: Surroundings | None) -> Judging:
    """The judge of a reward that needs no model of a run, with the image of what its verdicts depend on."""
    if around is not None and isinstance(reward, EnvironmentReward):
        return Judging(judge=EnvironmentJudge(reward, around.definition, around.image, around.services), image=around.image)
    judge = make_judge(reward, written_judges(reward, judges))
    return Judging(judge=judge, image=single_turn_image(verifier=judge.stamp, dependencies=package_versions()))


def judging(session: Session, reward: str | None) -> Judging:
    """The default judge (None), or that of a named reward: made when it is first asked for, with its record and its proof."""
    if reward is None:
        return Judging(judge=session.judge, image=session.image)
    if reward not in session.judges:
        from rollbook.orchestration.stages.scoring import RewardModelScorer  # which is built on sessions, as this is

        settings = session.settings.rewards.get(reward)
        if settings is None:
            raise RecipeError("no such reward in the recipe", got=reward, fix=f"one of {', '.join(session.settings.rewards)}")
        measured = () if isinstance(settings, RewardSettings | EnvironmentReward) else measured_by(settings)
        models = {f"model:{stage}": RewardModelScorer.of(session, stage) for stage in measured}
        judge = make_judge(settings, {**written_judges(settings, session.settings.judges), **models})
        image = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
        session.judges[reward] = Judging(judge=judge, image=image)
        if not any(known.digest == judge.digest for known in session.ledger.records(Composition)):
            known_images = {content_id(one) for one in session.ledger.records(EnvironmentImage)}
            if content_id(image) not in known_images:
                session.ledger.append(image)
            session.ledger.append(judge.composition)
            session.ledger.append(prove(image, judge, settings, session.sides.train))
    return session.judges[reward]
