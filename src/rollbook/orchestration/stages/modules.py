"""Modules beside the policy: published with their checkpoint, loaded again where a later stage needs them."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.models.scalar import ScalarModel, read_scalar, save_scalar
from rollbook.models.weights import weight_hash
from rollbook.orchestration.session import Session
from rollbook.orchestration.state import Trained
from rollbook.records import LedgerError, ModuleVersion, PolicyVersion, RecipeError


def publish_module(session: Session, stage: str, module: str, trained: Trained,
                   begun: tuple[PolicyVersion, Sequence[str]]) -> ModuleVersion:
    """Saves and records a trained scalar model; refuses one whose frozen parameters moved. `begun`: its policy, its updates."""
    model, optimizer = trained.module, trained.optimizer
    assert isinstance(model, ScalarModel) and optimizer is not None
    policy, window = begun
    checkpoint = f"checkpoints/{stage}.{module}"
    save_scalar(session.root / checkpoint, model, session.policy.tokenizer)
    tokenizer = session.policy.tokenizer
    version = ModuleVersion(stage=stage, module=module, weights=weight_hash(model.named_parameters()), began=policy.id,
                            window=tuple(window), optimizer=optimizer.digest(), checkpoint=checkpoint,
                            frozen=optimizer.check_standing(model), tokenizer=tokenizer.digest,
                            template=tokenizer.template_digest)
    session.ledger.append(version)
    return version


def scalar_of(session: Session, stage: str, module: str) -> tuple[ModuleVersion, ScalarModel]:
    """The scalar model that a stage published; refuses one that reads prompts in another form than this run's policy."""
    version = next((one for one in session.ledger.records(ModuleVersion) if one.stage == stage and one.module == module), None)
    if version is None:
        raise RecipeError(f"stage {stage} left no {module}", got="none", why="only a stage that trains one leaves one")
    tokenizer = session.policy.tokenizer
    if (version.tokenizer, version.template) != (tokenizer.digest, tokenizer.template_digest):
        raise RecipeError(f"the {module} of {stage} reads another template than the policy writes", got=version.template[:12],
                          why="its scores would be about other texts", fix="train it on rankings of this template")
    model = read_scalar(session.root / version.checkpoint, session.policy.decoder)
    if weight_hash(model.named_parameters()) != version.weights:
        raise LedgerError(f"the checkpoint of {stage} does not hold the {module} that was published", got=version.checkpoint,
                          why="it was changed after it was written", fix="restore it from a copy of the run")
    return version, model.requires_grad_(False)
