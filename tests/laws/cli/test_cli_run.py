"""Laws of the command line: refusals in four parts, exit codes, nothing left behind; the run itself is a stand-in."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from rollbook.cli import main
from rollbook.records import Diverged, ResolvedRecipe

SUPPLIED = {  # a value for everything that the true scale leaves unknown
    "tasks.families.math.generator": "chain_sum", "tasks.families.math.weight": 0.5, "tasks.families.code.generator": "chain_sum",
    "tasks.families.code.weight": 0.5, "tasks.system_prompt": "think", "tasks.max_tokens": 40960,
    "reward.length_max": 36864, "reward.length_cache": 4096, "reward.verify_seconds": 5,
    "stages.cold_start.traces": "{mine: 1.0}",
    "stages.cold_start.steps": 1000, "stages.cold_start.batch": 64, "stages.rl.objective.low": 0.2, "stages.rl.steps": 100,
    "stages.rl.objective.credit": "{eps: 1e-6, ddof: 0}", "stages.rl.prompts": 128, "stages.rl.per_task": 16,
    "stages.rl.groups": 128, "stages.rl.max_waves": 2, "stages.rl.max_policy_age": 2,
    "stages.rl.sampling": "{top_p: 1, top_k: 0, min_p: 0}", "stages.final_eval.sampling": "{top_k: 0, min_p: 0}",
    **{f"stages.{name}.optimizer": "{learning_rate: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, warmup_steps: 10, "
                                   "schedule: constant, max_grad_norm: 1}" for name in ("cold_start", "rl")},
}


class Call(NamedTuple):
    recipe: ResolvedRecipe | None
    out: Path


class Stage:
    """Stands where orchestration and report stand, notes its calls, and acts as told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.act: Callable[[Path], Any] = lambda out: 0

    def run_recipe(self, recipe: ResolvedRecipe, out: Path, progress: Any, *, until: str | None = None,
                   reuse: Any = None) -> int:
        self.calls.append(Call(recipe, out))
        progress.stage("cold_start", 1, 2, steps=2)
        progress.step(1, {})
        progress.step(2, {"sft/loss_nats": 0.5})
        return int(self.act(out))

    def resume_run(self, out: Path, progress: Any) -> int:
        self.calls.append(Call(None, out))
        return int(self.act(out))

    def write_report(self, run: Path) -> Path:
        return run / "report.html"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    stand_in = Stage()
    for name, functions in (("orchestration.run", ("run_recipe", "resume_run")), ("report.page", ("write_report",))):
        module = ModuleType(f"rollbook.{name}")
        for function in functions:
            setattr(module, function, getattr(stand_in, function))
        monkeypatch.setitem(sys.modules, f"rollbook.{name}", module)
    monkeypatch.chdir(tmp_path)
    return stand_in


def rollbook(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def refused(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    missing = [word for word in words if word not in result.stderr]
    assert not missing, f"{missing} not in:\n{result.stderr}"
    assert "Traceback" not in result.output


def test_run_takes_the_built_in_recipe_at_lab_scale_and_names_the_folder_after_it(stage: Stage) -> None:
    result = rollbook("run")
    assert result.exit_code == 0, result.output
    (call,) = stage.calls
    assert call.recipe is not None
    assert (call.recipe.name, call.recipe.scale) == ("magistral-small", "lab")
    assert call.out == Path("runs/magistral-small-lab-seed1")


def test_run_passes_scale_overrides_and_folder(stage: Stage) -> None:
    assert rollbook("run", "magistral-small", "--scale", "tiny", "--set", "run.seed=5", "--out", "here").exit_code == 0
    (call,) = stage.calls
    assert call.recipe is not None
    assert (call.recipe.settings.run.seed, call.recipe.scale, call.out) == (5, "tiny", Path("here"))


def test_run_first_prints_what_is_scaled_what_is_inferred_and_what_is_the_users(stage: Stage) -> None:
    output = rollbook("run", "--set", "stages.rl.objective.high=0.28").output
    titles = ("Scaled from the source:", "Inferred, not disclosed:", "Set by you:")
    scaled, inferred, own = (output.index(title) for title in titles)
    assert scaled < inferred < own < output.index("[1/2] cold_start")
    words = output[scaled:inferred].split()
    assert words[words.index("model.path"):][:3] == ["model.path", "smollm2-135m-instruct", "mistral-small-3-24b-instruct"]
    assert "stages.rl.optimizer: learning_rate " in output[inferred:own]
    assert "stages.rl.objective.high  0.28" in output[own:]


def test_assumptions_are_passed_on_and_shown_as_the_users(stage: Stage, tmp_path: Path) -> None:
    supplied = {"tasks.heldout": 512, **SUPPLIED}
    (tmp_path / "mine.yaml").write_text("schema: rollbook.assumptions/1\n"
                                        + "".join(f"{path}: {value}\n" for path, value in supplied.items()))
    result = rollbook("run", "--scale", "full", "--assume", "mine.yaml")
    assert result.exit_code == 0, result.output
    (call,) = stage.calls
    assert call.recipe is not None
    about = call.recipe.provenance["stages.rl.steps"]
    assert (about.origin, about.label, about.reason) == ("user", "I", "assumed by the user")
    assert "assumed by the user" in result.output
    assert "stages.rl.steps" in result.output[result.output.index("Set by you:"):]


def test_the_exit_code_of_a_run_is_the_commands(stage: Stage) -> None:
    stage.act = lambda out: 3
    assert rollbook("run").exit_code == 3


@pytest.mark.parametrize(("words", "message"), [
    (["run", "magistral-smal"], ["unknown recipe", "got 'magistral-smal'", "why:", "fix: nearest names: magistral-small"]),
    (["run", "missing.yaml"], ["recipe file not found", "fix:"]),
    (["run", "--scale", "huge"], ["unknown scale", "got 'huge'"]),
    (["run", "--scale", "full"], ["values are not disclosed", "stages.rl.optimizer.learning_rate", "(typical, I: 1e-6 to 1e-5",
                                  "fix: add --set", "--assume FILE", "--scale lab"]),
    (["run", "--assume", "missing.yaml"], ["assumptions missing.yaml cannot be read"]),
    (["run", "--assume", "file"], ["file: a file of assumptions must begin with"]),
    (["run", "--set", "run.sed=1"], ["names no setting", "nearest names: run.seed"]),
    (["run", "--set", "run.seed=x"], ["run.seed must be an integer"]),
    (["run", "--set", "stages.rl.per_task=1"], ["needs at least 2 rollouts per task"]),
    (["run", "--out", "file/run"], ["the run folder cannot be made", "is not a folder"]),
    (["run", "--out", "taken"], ["the run folder exists", "got taken", "rollbook resume taken"]),
    (["run", "--out", "dangling"], ["the run folder exists"]),
    (["resume", "taken"], ["not a run folder", "got taken", "manifest.json"]),
    (["report", "nowhere"], ["not a run folder"]),
    (["recipes", "show", "nothing"], ["unknown recipe"]),
    (["recipes", "check", "file"], ["file: a recipe must be a mapping"]),
])
def test_a_refused_command_exits_with_2_and_leaves_no_file_behind(stage: Stage, tmp_path: Path, words: list[str],
                                                                  message: list[str]) -> None:
    (tmp_path / "file").write_text("just text")
    (tmp_path / "taken").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    before = sorted(path.name for path in tmp_path.iterdir())
    refused(rollbook(*words), *message)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not stage.calls


def test_a_read_only_place_is_refused_before_anything_is_written(stage: Stage, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    refused(rollbook("run"), "the run folder cannot be made", "is read-only", "fix: choose another with --out")
    assert not stage.calls and not list(tmp_path.iterdir())


def test_too_little_disk_space_is_refused_before_anything_is_written(stage: Stage, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    refused(rollbook("run"), "too little disk space", "1 MiB free")
    assert not stage.calls and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("code", "words"), [
    (errno.ENOSPC, "no space left on the device"),
    (errno.EROFS, "the file system is read-only"),
    (errno.EACCES, "permission denied"),
])
def test_a_disk_that_fails_during_the_run_is_a_refusal_and_not_a_traceback(stage: Stage, code: int, words: str) -> None:
    def fail(out: Path) -> int:
        raise OSError(code, os.strerror(code), str(out / "events"))
    stage.act = fail
    refused(rollbook("run"), "cannot write runs/magistral-small-lab-seed1/events", words, "why:", "fix:", "rollbook resume")


def test_a_full_disk_is_a_refusal_whatever_kind_of_error_a_native_writer_raises(stage: Stage) -> None:
    def fail(out: Path) -> int:
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    stage.act = fail
    refused(rollbook("run"), "cannot write the run", "no space left on the device")


def test_any_other_failure_of_the_system_keeps_its_traceback(stage: Stage) -> None:
    def fail(out: Path) -> int:
        raise FileNotFoundError(errno.ENOENT, "a bug")
    stage.act = fail
    assert isinstance(rollbook("run").exception, FileNotFoundError)


def test_divergence_is_printed_as_it_is_and_exits_with_3(stage: Stage) -> None:
    def fail(out: Path) -> int:
        raise Diverged("the loss is not finite", got="nan at update 7", fix="see the kept batch")
    stage.act = fail
    refused(rollbook("run"), "the loss is not finite, got nan at update 7.\n  fix: see the kept batch", code=3)


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(stage: Stage, tmp_path: Path) -> None:
    def stop(out: Path) -> int:
        out.mkdir(parents=True)
        raise KeyboardInterrupt
    stage.act = stop
    refused(rollbook("run", "--out", "mine"), "stopped", "fix: go on with `rollbook resume mine`", code=130)


def test_ctrl_c_before_anything_was_written_promises_nothing(stage: Stage) -> None:
    def stop(out: Path) -> int:
        raise KeyboardInterrupt
    stage.act = stop
    result = rollbook("run")
    refused(result, "nothing was written", code=130)
    assert "resume" not in result.stderr


def test_resume_and_report_take_a_run_folder(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert rollbook("resume", "run").exit_code == 0
    assert stage.calls == [Call(None, Path("run"))]
    assert rollbook("report", "run").output == "run/report.html\n"


def test_the_installed_command_refuses_with_2() -> None:
    command = Path(sys.executable).parent / "rollbook"
    done = subprocess.run([command, "run", "nothing-like-it"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown recipe" in done.stderr
