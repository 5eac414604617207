"""Who may import whom, the heavy packages' one home, and what stays importable without them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "rollbook"
LOWER = {"records", "objectives", "evidence", "ledger", "models", "tasks", "environments", "rewards", "rollouts", "experience",
         "training", "evaluation"}
ALLOWED = {  # the table of the architecture
    "records": set(),
    "objectives": set(),
    "evidence": {"records"},
    "ledger": {"records"},
    "models": {"records"},
    "tasks": {"records"},
    "environments": {"records"},
    "rewards": {"records"},
    "rollouts": {"records", "models", "environments"},
    "experience": {"records", "objectives"},
    "training": {"records", "objectives", "models", "experience"},
    "evaluation": {"records", "tasks", "environments", "rewards", "rollouts"},
    "orchestration": LOWER | {"serve"},         # serve: an outside agent as the source of a stage's attempts
    "adapters": {"records", "ledger", "models"},        # models: the one hash of weights
    "audit": {"records", "ledger", "objectives", "models", "tasks", "environments", "rewards", "rollouts", "experience",
              "training", "evaluation"},        # rollouts: a deep audit samples attempts again
    "recipes": {"records", "evidence"},
    "report": {"records", "evidence", "ledger", "rewards"},       # rewards: the calibration that is drawn
    "__main__": {"cli"},
    "cli": LOWER | {"audit", "cli_abilities", "cli_audit",
                    "cli_checklist", "cli_claims", "cli_curate", "cli_preflight", "cli_env", "cli_eval",
                    "cli_evidence", "cli_rewards", "cli_plan",
                    "cli_gate", "cli_grid", "cli_inspect",
                    "cli_metrics", "cli_output", "cli_progress", "cli_recipes", "cli_rerun",
                    "cli_selftest", "cli_serve", "cli_view", "orchestration", "recipes", "report", "serve", "view"},
    "experiments": {"records", "evidence", "ledger", "recipes", "evaluation"},
    "cli_rerun": {"records", "evidence", "ledger", "experiments", "cli_output"},
    "cli_card": {"records", "evidence", "recipes", "cli_output"},
    "cli_checklist": {"records", "evidence", "audit", "report", "cli_output"},
    "cli_claims": {"records", "evidence", "ledger", "recipes", "report", "cli_card", "cli_output"},
    "cli_abilities": {"records", "ledger", "orchestration", "report", "cli_output", "cli_progress"},
    "cli_plan": {"records", "recipes", "orchestration", "cli_progress"},
    "cli_recipes": {"records", "evidence", "recipes", "cli_card", "cli_output"},
    "cli_audit": {"records", "ledger", "audit", "cli_output"},
    "cli_rewards": {"records", "ledger", "rewards", "orchestration", "report", "cli_output"},
    "cli_preflight": {"records", "recipes", "orchestration", "cli_progress"},
    "cli_curate": {"records", "orchestration"},
    "cli_env": {"models", "records", "environments", "orchestration"},
    "cli_eval": {"records", "evaluation", "orchestration", "audit", "cli_grid", "cli_output", "cli_progress", "view"},
    "cli_grid": {"records", "audit", "orchestration", "cli_output", "cli_progress"},
    "cli_gate": {"records", "evaluation", "orchestration", "cli_output"},
    "cli_inspect": {"records", "ledger", "report", "cli_output"},
    "cli_evidence": {"records", "ledger", "audit", "orchestration", "cli_output", "cli_progress"},
    "view": {"records", "evidence", "ledger", "report", "orchestration"},      # orchestration: evaluations compared
    "cli_metrics": {"records", "report", "cli_output"},
    "cli_view": {"records", "report", "view", "cli_output"},
    "serve": {"records", "models", "rollouts"},
    "cli_serve": {"records", "orchestration", "serve", "cli_output"},
    "cli_selftest": {"records", "orchestration"},
    "cli_output": {"records", "recipes"},
    "cli_progress": {"records"},
}
HOMES = {"transformers": ("models/", "adapters/trl.py"), "trl": "adapters/trl.py", "vllm": "rollouts/engines/vllm.py",
         "ray": "orchestration/runtimes/ray.py", "bm25s": "environments/builtin/index.py",
         "duckdb": "ledger/query.py", "peft": "training/lora.py", "starlette": ("view/app.py", "serve/app.py"),
         "uvicorn": ("view/app.py", "serve/running.py"),
         "tensorboard": "report/exports/tensorboard.py", "mlflow": "report/exports/mlflow.py",
         "wandb": "report/exports/wandb.py", "trackio": "report/exports/trackio.py",
         "opentelemetry": "report/exports/opentelemetry.py",
         "model_signing": "evaluation/signing.py", "cryptography": "evaluation/signing.py"}


def imported(file: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(file for file in SOURCE.rglob("*.py") if file.parent != SOURCE or file.name.startswith("cli"))


def test_every_package_has_its_place_in_the_table() -> None:
    assert {package(file) for file in FILES} <= set(ALLOWED)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_package_imports_only_what_its_layer_may(name: str) -> None:
    strays = [f"{file.relative_to(SOURCE)} imports {other}" for file in FILES if package(file) == name for other in imported(file)
              if other.startswith("rollbook.") and other.split(".")[1] in ALLOWED and other.split(".")[1] != name
              and other.split(".")[1] not in ALLOWED[name]]
    assert not strays


def test_a_heavy_package_is_imported_only_in_its_home() -> None:
    strays = [f"{file.relative_to(SOURCE)} imports {other}" for file in FILES for other in imported(file)
              if (home := HOMES.get(other.split(".")[0])) and not str(file.relative_to(SOURCE)).startswith(home)]
    assert not strays


def loaded_after(program: str, heavy: tuple[str, ...]) -> list[str]:
    """Which heavy packages are loaded once a fresh interpreter has run the program."""
    code = f"{program}\nimport sys\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    return found


ALL_MODULES = """
import importlib, pkgutil
for name in {names!r}:
    root = importlib.import_module("rollbook." + name)
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        importlib.import_module(module.name)
"""


def test_records_evidence_ledger_and_recipes_import_without_torch() -> None:
    program = ALL_MODULES.format(names=("records", "evidence", "ledger", "recipes"))
    assert loaded_after(program, ("torch", "transformers", "ray", "vllm")) == []


def test_help_recipes_and_evidence_run_without_torch() -> None:
    program = ("from click.testing import CliRunner\nfrom rollbook.cli import main\n"
               "for words in (['--help'], ['run', '--help'], ['recipes'], ['recipes', 'check', 'magistral-small'],\n"
               "              ['recipes', 'show', 'magistral-small'], ['evidence', 'matrix'], ['evidence', 'show', 'qwen3']):\n"
               "    assert CliRunner().invoke(main, words).exit_code == 0")
    assert loaded_after(program, ("torch", "transformers", "numpy", "pyarrow")) == []


def test_objectives_tasks_rewards_ledger_and_evidence_import_without_transformers_ray_or_vllm() -> None:
    program = "".join(f"import rollbook.{name}\n" for name in ("objectives", "tasks", "rewards", "ledger", "evidence"))
    assert loaded_after(program, ("transformers", "ray", "vllm")) == []
