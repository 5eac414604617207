"""A bundle run again from scratch: equal hashes here, a stated tolerance elsewhere, and no difference left unexplained."""

import json
import shutil

import pytest
from click.testing import CliRunner

from rollbook.audit.export import export_run
from rollbook.cli import main
from rollbook.ledger.bundle import opened
from rollbook.ledger.objects import file_digest
from rollbook.ledger.sameness import Unlike
from rollbook.orchestration.reproduce import compared

ELSEWHERE = (Unlike(what="machine.cpu", there="one", here="another", moves_update=True, moves_run=True),)


@pytest.fixture(scope="module")
def bundle(small_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle") / "bundle.tar.gz"
    export_run(small_run, out)
    return out


def test_a_bundle_reproduces_with_equal_hashes_on_this_machine(bundle, tmp_path):
    result = CliRunner().invoke(main, ["reproduce", str(bundle), "--out", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["same"] and found["first"] is None and found["versions"] > 2 and found["records"] > 30
    again = CliRunner().invoke(main, ["reproduce", str(bundle), "--out", str(tmp_path / "run")])
    assert again.exit_code == 2 and "exists" in again.output


def other(bundle, folder, change):
    """The bundle with its expectations changed and its index made to fit."""
    with opened(bundle) as given:
        shutil.copytree(given.root, folder)
    for name, mend in change.items():
        (folder / name).write_text(mend((folder / name).read_text()))
        index = json.loads((folder / "index.json").read_text())
        index["files"][name] = {"sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size}
        (folder / "index.json").write_text(json.dumps(index))
    return folder


def one_step_otherwise(text):
    lines = [json.loads(line) for line in text.splitlines()]
    place = next(i for i, line in enumerate(lines) if line["kind"] == "Update")
    lines[place]["id"] = "Update:" + "0" * 64
    return "".join(json.dumps(line) + "\n" for line in lines)


def other_weights(text):
    document = json.loads(text)
    document["versions"][-1]["weights"] = "0" * 64
    return json.dumps(document)


def better_than_it_was(text):
    document = json.loads(text)
    document["evaluations"]["final_eval"] |= {"estimate": 0.99, "low": 0.98, "high": 1.0}
    document["versions"][-1]["weights"] = "0" * 64
    return json.dumps(document)


@pytest.mark.parametrize(("change", "differ", "explained", "beyond"), [
    ({}, (), True, False), ({}, ELSEWHERE, True, False),
    ({"log.jsonl": one_step_otherwise}, (), False, False), ({"log.jsonl": one_step_otherwise}, ELSEWHERE, True, False),
    ({"expected.json": other_weights}, (), False, False), ({"expected.json": other_weights}, ELSEWHERE, True, False),
    ({"expected.json": better_than_it_was}, ELSEWHERE, False, True),
])
def test_a_difference_is_explained_by_another_machine_and_only_within_the_tolerance(bundle, small_run, tmp_path, change, differ,
                                                                                     explained, beyond):
    with opened(other(bundle, tmp_path / "bundle", change)) as given:
        found = compared(given, small_run, differ)
    assert found.explained is explained and bool(found.beyond) is beyond
    assert found.same is (not change)
    if "log.jsonl" in change:
        assert found.first is not None and found.first.recorded.startswith("Update")
        assert found.records == found.first.place - 1


def test_the_bundle_of_a_run_in_progress_is_compared_as_far_as_it_goes(bundle, small_run, tmp_path):
    def half(text):
        return "".join(line + "\n" for line in text.splitlines()[:20])

    def unfinished(text):
        document = json.loads(text)
        return json.dumps({**document, "complete": False, "versions": document["versions"][:1]})
    with opened(other(bundle, tmp_path / "bundle", {"log.jsonl": half, "expected.json": unfinished})) as given:
        found = compared(given, small_run, ())
    assert found.same and found.records == 20
    with opened(other(bundle, tmp_path / "whole", {"log.jsonl": half})) as given:
        found = compared(given, small_run, ())
    assert not found.same and found.first.recorded == "nothing more" and found.first.place == 21
