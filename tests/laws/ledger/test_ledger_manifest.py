"""What of the environment reaches a run: the allow-list and nothing else."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ledger_samples import outcome, rows

from rollbook.ledger import Ledger, environment_manifest, manifest

SECRET = "hunter2-d41d8cd98f00b204"


def test_no_secret_of_the_environment_reaches_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HTTPS_PROXY", "OMP_NUM_THREADS", "MKL_CBWR",
                 "GIT_AUTHOR_NAME", "USER", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, SECRET)
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[user]\n name = {SECRET}\n[core]\n fsmonitor = {SECRET}\n")
    monkeypatch.setenv("HOME", str(home))
    with Ledger.create(tmp_path / "run", environment_manifest()) as ledger:
        ledger.append(outcome(0))
        ledger.put(b"blob")
        ledger.write_traces("t", *rows(2))
        ledger.write_table("t", [outcome(1)])
    found = b""
    for path in sorted((tmp_path / "run").rglob("*")):
        found += str(path.relative_to(tmp_path)).encode()
        if path.suffix == ".parquet":
            found += str(pq.read_table(path).to_pylist()).encode() + str(pq.read_schema(path).metadata).encode()
        found += path.read_bytes() if path.is_file() else b""
    forbidden = {SECRET, "home-of-somebody", str(tmp_path), str(Path.cwd()), sys.prefix}
    forbidden |= {word for word in (socket.gethostname(), getpass.getuser()) if len(word) > 5}
    for word in forbidden:
        assert word.encode() not in found, word


def test_every_recorded_setting_is_on_the_allow_list_or_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MKL_CBWR", "/somebody/else")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    settings = environment_manifest()["settings"]
    assert set(settings) == set(manifest.SETTINGS)
    assert (settings["OMP_NUM_THREADS"], settings["CUDA_VISIBLE_DEVICES"]) == ("4", "0,1")
    assert settings["MKL_CBWR"] == "withheld" and settings["OPENBLAS_NUM_THREADS"] is None


def test_the_manifest_names_code_packages_and_machine_and_is_plain_json() -> None:
    document = environment_manifest()
    assert json.loads(json.dumps(document)) == document
    assert document["packages"]["pyarrow"] and document["packages"]["rollbook"]
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["machine"]["cores"] == os.cpu_count()
    assert len(document["code"]["source"]) == 64


def test_commit_and_changes_are_recorded_only_for_the_packages_own_checkout(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True,
                       capture_output=True)

    assert manifest._code(package)["commit_absent"] == "the package is not a tracked file of a git checkout"
    git("init")
    assert manifest._code(package)["commit"] is None
    git("add", ".")
    assert manifest._code(package)["commit_absent"] == "the checkout has no commit"
    git("commit", "-m", "first")
    clean = manifest._code(package)
    assert clean["commit"] and clean["commit_absent"] is None
    (package / "__init__.py").write_text("x = 2\n")
    changed = manifest._code(package)
    assert changed["commit"] == clean["commit"]
    assert changed["diff"] != clean["diff"] and changed["source"] != clean["source"]


def test_the_ledger_imports_without_torch_numpy_transformers_or_pyarrow() -> None:
    script = ("import sys, rollbook.ledger\n"
              "print([name for name in ('torch', 'numpy', 'transformers', 'pyarrow', 'ray', 'vllm') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
