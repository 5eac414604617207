"""The bundle: ten parts with what is missing named, equal bytes for equal runs, provenance of the published structure."""

import json
import os
import re
import shutil
import socket
import tarfile

import pyarrow.parquet as pq
import pytest
from attacked import quick_recipe
from click.testing import CliRunner
from safetensors import safe_open
from small_runs import Quiet

from rollbook.audit.export import export_run
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.ledger.bundle import opened
from rollbook.ledger.objects import file_digest
from rollbook.orchestration.run import run_recipe
from rollbook.records import LedgerError, PolicyVersion


@pytest.fixture(scope="module")
def bundle(small_run, tmp_path_factory, steady):
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollbook.audit.export.environment_manifest", lambda: steady)
        export_run(small_run, out)
    return out


def index_of(folder):
    return json.loads((folder / "index.json").read_text())


def test_every_part_names_what_is_there_and_what_is_not(bundle):
    index = index_of(bundle)
    assert [part["number"] for part in index["parts"]] == list(range(1, 11))
    for part in index["parts"]:
        assert part["status"] in ("complete", "partial") and part["holds"]
        assert all(why.strip() for why in (*part["missing"].values(), *part["none"].values()))
        for places in part["holds"].values():
            assert all((bundle / place).exists() for place in places.split(", ")), part
    for name, about in index["files"].items():
        assert file_digest(bundle / name) == about["sha256"]
    readme = (bundle / "README.md").read_text()
    assert all(part["title"] in readme for part in index["parts"])


def test_what_a_copy_of_a_run_has_lost_is_named(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "rl")
    result = CliRunner().invoke(main, ["export", str(tmp_path / "run"), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "missing: weights after rl (the checkpoint is not in this copy of the run)" in result.output
    assert not (tmp_path / "out" / "provenance" / "rl.intoto.json").exists()


def test_another_program_is_not_released_as_the_one_that_ran(small_run, tmp_path, steady, monkeypatch):
    monkeypatch.setattr("rollbook.audit.export.environment_manifest", lambda: {**steady, "code": {"source": "0" * 64}})
    export_run(small_run, tmp_path / "out")
    assert not (tmp_path / "out" / "source").exists()
    assert "not the one that ran" in json.dumps(index_of(tmp_path / "out")["parts"][3]["missing"])


def test_equal_runs_give_equal_bytes_apart_from_what_was_observed(small_run, tmp_path, steady, monkeypatch):
    with Ledger.open(small_run, write=False) as ledger:
        model = ledger.manifest["model"]
    monkeypatch.setattr("rollbook.orchestration.run.environment_manifest", lambda: steady)
    monkeypatch.setattr("rollbook.audit.export.environment_manifest", lambda: steady)
    assert run_recipe(quick_recipe(model), tmp_path / "again", Quiet()) == 0
    for name in ("one.tar.gz", "two.tar.gz", "one"):
        export_run(small_run, tmp_path / name)
    export_run(tmp_path / "again", tmp_path / "other")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    mine, other = index_of(tmp_path / "one"), index_of(tmp_path / "other")
    assert {name for name in mine["files"] if mine["files"][name] != other["files"].get(name)} == set()
    assert mine == other and mine["observed"] == ["09_hardware/observed.jsonl"]


def test_a_bundle_opens_from_folder_and_archive_and_refuses_any_other_file(bundle, small_run, tmp_path):
    with opened(bundle) as given, Ledger.open(small_run, write=False) as ledger:
        assert given.expected["versions"][-1]["weights"] == list(ledger.records(PolicyVersion))[-1].weights
    changes = {"changed": lambda folder: (folder / "recipe.json").write_text((folder / "recipe.json").read_text() + " "),
               "files of its index": lambda folder: (folder / "extra").write_text("x"),
               "not a bundle": lambda folder: (folder / "index.json").unlink(),
               "hold the files": lambda folder: next((folder / "objects").iterdir()).unlink()}
    for words, change in changes.items():
        copy = tmp_path / words.replace(" ", "-")
        shutil.copytree(bundle, copy)
        change(copy)
        with pytest.raises(LedgerError, match=words), opened(copy):
            pass
    (tmp_path / "torn.tar.gz").write_bytes(b"\x1f\x8b not an archive")
    with pytest.raises(LedgerError, match="unpacked"), opened(tmp_path / "torn.tar.gz"):
        pass


def test_a_bundle_is_never_written_over_another_and_a_failed_one_leaves_nothing(small_run, bundle, tmp_path, monkeypatch):
    with pytest.raises(LedgerError, match="taken"):
        export_run(small_run, bundle)
    monkeypatch.setattr("rollbook.audit.export.readme", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_run(small_run, tmp_path / "out.tar.gz")
    assert not list(tmp_path.iterdir())


URI = re.compile(r"[a-z][a-z0-9+.-]*:\S+")
HEX = {"sha256": 64, "blake3": 64, "gitCommit": 40}


def check_descriptor(one):
    """in-toto ResourceDescriptor v1: one of uri, digest, content; lower-case hexadecimal digests; annotations are an object."""
    assert set(one) <= {"name", "uri", "digest", "content", "downloadLocation", "mediaType", "annotations"}
    assert one.get("uri") or one.get("digest") or one.get("content")
    for algorithm, value in one.get("digest", {}).items():
        assert re.fullmatch(rf"[0-9a-f]{{{HEX[algorithm]}}}", value), (algorithm, value)
    assert isinstance(one.get("annotations", {}), dict)


def check_statement(statement):
    """in-toto Statement v1 with the SLSA v1 provenance predicate: required fields, types, no field of another name."""
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"]
    for subject in statement["subject"]:
        check_descriptor(subject)
        assert subject["digest"], "a subject is known by its digest"
    definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert set(statement["predicate"]) == {"buildDefinition", "runDetails"}
    assert set(definition) <= {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert URI.fullmatch(definition["buildType"]) and definition["externalParameters"]
    for one in definition["resolvedDependencies"]:
        check_descriptor(one)
    assert set(details) <= {"builder", "metadata", "byproducts"}
    assert set(details["builder"]) <= {"id", "version", "builderDependencies"}
    assert URI.fullmatch(details["builder"]["id"]) and all(isinstance(v, str) for v in details["builder"]["version"].values())
    assert set(details.get("metadata", {})) <= {"invocationId", "startedOn", "finishedOn"}
    for one in details.get("byproducts", ()):
        check_descriptor(one)


def test_each_checkpoint_has_a_statement_of_the_published_structure(bundle):
    statements = {path.name: json.loads(path.read_text()) for path in (bundle / "provenance").iterdir()}
    assert set(statements) == {"cold_start.intoto.json", "rl.intoto.json"}
    for statement in statements.values():
        check_statement(statement)
        for subject in statement["subject"]:
            assert file_digest(bundle / subject["name"]) == subject["digest"]["sha256"]
    needs = {one["name"]: one for one in statements["rl.intoto.json"]["predicate"]["buildDefinition"]["resolvedDependencies"]}
    parent = next(one for one in statements["cold_start.intoto.json"]["subject"] if one["name"].endswith("model.safetensors"))
    assert needs[parent["name"]]["digest"] == parent["digest"]
    assert {"rollbook", "tasks/raw", "tasks/train"} <= set(needs) and "tasks/heldout" not in needs
    blobs = [name for name in needs if name.startswith("objects/")]
    assert blobs and all((bundle / name).is_file() for name in blobs)


def texts(folder):
    """Everything in a folder as bytes: names, plain content, and what Parquet, archives and tensor headers hold inside."""
    for path in sorted(path for path in folder.rglob("*")):
        yield str(path.relative_to(folder)).encode()
        if not path.is_file():
            continue
        yield path.read_bytes()
        if path.suffix == ".parquet":
            yield str(pq.read_table(path).to_pylist()).encode() + str(pq.read_schema(path).metadata).encode()
        elif path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                yield str(file.metadata()).encode()
        elif path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(folder / "unpacked", filter="data")
                for member in archive.getmembers():
                    yield f"{member.name} {member.uname} {member.gname} {member.mtime}".encode()
            yield from texts(folder / "unpacked")


SECRET = "hunter2-d41d8cd98f00b204"
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "GITHUB_TOKEN", "OPENAI_API_KEY",
         "HTTPS_PROXY", "SSH_AUTH_SOCK", "USER", "LOGNAME", "HOSTNAME", "EMAIL", "GIT_AUTHOR_NAME", "OMP_NUM_THREADS", "MKL_CBWR",
         "ROLLBOOK_SOMETHING", "SLURM_JOB_ID")


def test_no_secret_home_path_or_host_reaches_run_report_or_bundle(small_run, tmp_path, monkeypatch):
    from rollbook.report.page import write_report

    with Ledger.open(small_run, write=False) as ledger:
        model = ledger.manifest["model"]
    home = tmp_path / "home-of-somebody"
    shutil.copytree(model, home / "models" / "warm")
    (home / ".gitconfig").write_text(f"[user]\n name = {SECRET}\n")
    for name in NAMES:
        monkeypatch.setenv(name, f"{SECRET}-{name}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-somebody")
    monkeypatch.setattr("platform.node", lambda: "host-of-somebody")
    place = tmp_path / "place"
    assert run_recipe(quick_recipe(home / "models" / "warm"), place / "run", Quiet()) == 0
    write_report(place / "run")
    export_run(place / "run", place / "bundle.tar.gz")
    result = CliRunner().invoke(main, ["replay", str(place / "run"), "--json"])
    assert result.exit_code == 0, result.output
    everything = b"\n".join((result.output.encode(), *texts(place)))
    assert b"~/models/warm" in everything          # the search sees what is there
    real = {value for name, value in os.environ.items() if name not in NAMES and len(value) > 12 and "/" in value}
    for word in {SECRET, "home-of-somebody", "host-of-somebody", str(tmp_path), *real}:
        assert word.encode() not in everything, word
