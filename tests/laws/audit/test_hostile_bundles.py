"""A bundle from a stranger: nothing outside it is read or written, nothing in it is believed without its hash."""

import io
import json
import os
import tarfile

import pytest
from small_runs import small_recipe

from rollbook.ledger import bundle as bundles
from rollbook.ledger.bundle import opened
from rollbook.ledger.objects import file_digest
from rollbook.records import LedgerError, encode

EXPECTED = {"manifest": {}, "complete": True, "versions": [], "census": {}, "sft_loss_nats": {}, "evaluations": {}}


@pytest.fixture
def bundle(tmp_path):
    """The smallest bundle that opens."""
    root = tmp_path / "bundle"
    root.mkdir()
    (root / "recipe.json").write_text(json.dumps(encode(small_recipe())))
    (root / "expected.json").write_text(json.dumps(EXPECTED))
    (root / "log.jsonl").write_text(json.dumps({"kind": "RunEnd", "id": "RunEnd:1", "label": ""}) + "\n")
    return indexed(root)


def indexed(root, **more):
    """The index over what lies there."""
    files = {path.relative_to(root).as_posix(): {"sha256": file_digest(path), "bytes": path.stat().st_size}
             for path in root.rglob("*") if path.is_file() and path.name != "index.json"}
    (root / "index.json").write_text(json.dumps({"format": bundles.FORMAT, "files": files, "observed": [], **more}))
    return root


def packed(bundle, target, *more, change=lambda member: None):
    """An archive of the bundle with further members: (TarInfo, content)."""
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(bundle.iterdir()):
            member = archive.gettarinfo(path, path.name)
            change(member)
            with path.open("rb") as file:
                archive.addfile(member, file)
        for member, content in more:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target


def refused(path, words):
    with pytest.raises(LedgerError, match=words), opened(path):
        pass


def member(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_an_honest_bundle_opens_as_folder_and_archive(bundle, tmp_path):
    for place in (bundle, packed(bundle, tmp_path / "a.tar.gz")):
        with opened(place) as given:
            assert [one["kind"] for one in given.log()] == ["RunEnd"]


@pytest.mark.parametrize(("name", "kind", "link"), [
    ("../outside", tarfile.REGTYPE, ""), ("/tmp/rollbook-outside", tarfile.REGTYPE, ""), ("a/../../outside", tarfile.REGTYPE, ""),
    ("link", tarfile.SYMTYPE, "/etc/passwd"), ("link", tarfile.SYMTYPE, "recipe.json"), ("link", tarfile.LNKTYPE, "recipe.json"),
    ("device", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")])
def test_an_archive_with_a_path_outside_or_a_link_or_a_device_is_refused(bundle, tmp_path, name, kind, link):
    refused(packed(bundle, tmp_path / "a.tar.gz", (member(name, kind, link), b"")), "bundle")
    assert not (tmp_path / "outside").exists() and not os.path.exists("/tmp/rollbook-outside")


def test_an_archive_that_would_fill_the_disk_or_has_too_many_files_is_refused(bundle, tmp_path, monkeypatch):
    bomb = packed(bundle, tmp_path / "a.tar.gz", (member("zeros"), bytes(2**20)))
    with monkeypatch.context() as patch:
        patch.setattr(bundles, "FREE_SHARE", 0.0)
        refused(bomb, "not one that `rollbook export` wrote")
    with monkeypatch.context() as patch:
        patch.setattr(bundles, "MEMBERS", 2)
        refused(bomb, "not one that `rollbook export` wrote")


def test_a_torn_archive_and_one_that_is_none_are_refused(bundle, tmp_path):
    whole = packed(bundle, tmp_path / "a.tar.gz").read_bytes()
    for number, content in enumerate((whole[:len(whole) // 2], b"no archive", b"", whole[:40] + b"\0" * 40 + whole[80:])):
        place = tmp_path / f"{number}.tar.gz"
        place.write_bytes(content)
        refused(place, "bundle")


@pytest.mark.parametrize("index", [[], "text", {"format": "rollbook.bundle/9"}, {"files": []}, {"files": {"a": 1}},
                                   {"observed": 3}, {"observed": [[]]}, {"files": {"recipe.json": {"sha256": None}}}])
def test_an_index_of_another_form_is_refused(bundle, index):
    document = {**json.loads((bundle / "index.json").read_text()), **index} if isinstance(index, dict) else index
    (bundle / "index.json").write_text(json.dumps(document))
    refused(bundle, "bundle")


def test_an_index_nested_without_end_is_refused(bundle):
    (bundle / "index.json").write_text("[" * 100_000)
    refused(bundle, "not a bundle")


def test_a_folder_with_a_link_is_refused_though_the_hash_fits(bundle, tmp_path):
    (tmp_path / "elsewhere").write_text("content")
    (bundle / "link").symlink_to(tmp_path / "elsewhere")
    refused(indexed(bundle), "link")


def test_what_a_reproduction_rests_on_needs_a_hash(bundle):
    index = json.loads((bundle / "index.json").read_text())
    index["observed"] = ["expected.json"]
    del index["files"]["expected.json"]
    (bundle / "index.json").write_text(json.dumps(index))
    refused(bundle, "export")


@pytest.mark.parametrize("name", ["recipe.json", "expected.json", "log.jsonl"])
def test_one_changed_byte_is_refused(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(bytes(data))
    refused(bundle, name)


@pytest.mark.parametrize("lacking", sorted(EXPECTED))
def test_expectations_that_lack_a_part_are_refused(bundle, lacking):
    (bundle / "expected.json").write_text(json.dumps({name: value for name, value in EXPECTED.items() if name != lacking}))
    refused(indexed(bundle), "bundle")


@pytest.mark.parametrize("line", ["no json", "[]", '{"kind": 3, "id": "", "label": ""}', "[" * 100_000])
def test_a_log_that_names_no_record_is_refused(bundle, line):
    (bundle / "log.jsonl").write_text(line + "\n")
    with opened(indexed(bundle)) as given, pytest.raises(LedgerError, match="line 1"):
        list(given.log())
