"""The claims in the package: compiled as written, sourced, and many."""

from __future__ import annotations

import dataclasses
import re

import pytest

from rollbook.evidence import index
from rollbook.evidence.claims import Code, Config
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import CLAIMS, Registry, builtin, read_folder


@pytest.fixture(scope="module")
def written() -> Registry:
    return read_folder(CLAIMS)


def test_the_compiled_index_is_what_the_files_say(written: Registry) -> None:
    text = index.compiled(written.releases, {name: written.claim(name) for name in written.ids})
    assert index.FILE.read_text(encoding="utf-8") == text, "run `python -m rollbook.evidence.index`"


def test_a_claim_from_the_index_is_the_claim_from_its_file(written: Registry) -> None:
    assert builtin().ids == written.ids and builtin().releases == written.releases
    assert all(builtin().claim(name) == dataclasses.replace(claim, at=claim.at.partition(":")[0])
               for name in written.ids for claim in [written.claim(name)])


def test_no_claim_is_without_a_source_and_the_unknown_are_claims_too(written: Registry) -> None:
    claims = [written.claim(name) for name in written.ids]
    assert len(claims) >= 400
    assert all(claim.source.document and claim.source.section and claim.says for claim in claims)
    assert {claim.label for claim in claims} >= {"D", "C", "I", "U"}
    assert sum(claim.label == "U" for claim in claims) > 100


def test_every_confirmed_artifact_has_a_check(written: Registry) -> None:
    confirmed = [claim for name in written.ids if (claim := written.claim(name)).label == "C"]
    assert confirmed and all(isinstance(claim.artifact, Config | Code) for claim in confirmed)


def test_every_release_is_spoken_of(written: Registry) -> None:
    spoken = {release for name in written.ids for claim in [written.claim(name)]
              for release in (claim.release, *claim.scope, *(boundary.release for boundary in claim.not_for))}
    assert set(written.releases) <= spoken


def test_no_line_is_longer_than_the_others_of_this_project() -> None:
    assert not [f"{file.name}:{number}" for file in CLAIMS.glob("*.yaml")
                for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 130]


def test_no_two_claims_say_the_same_sentence_of_one_release(written: Registry) -> None:
    seen: dict[tuple[str, str | None, str, str], str] = {}
    for name in written.ids:
        claim = written.claim(name)
        key = (claim.release, claim.model, claim.stage, re.sub(r"\W+", " ", claim.says).strip().lower())
        assert seen.setdefault(key, name) == name, (name, seen[key])


OWN_TABLES = ("Broader lineage coverage", "Generation milestones", "Optimization and consolidation mechanisms at a glance",
              "8.1", "8.2", "8.3")


def test_what_a_document_only_pairs_or_places_in_a_table_of_its_own_is_no_disclosure(written: Registry) -> None:
    claims = [claim for name in written.ids if (claim := written.claim(name)).source.section in OWN_TABLES]
    assert len(claims) > 80 and not [claim.id for claim in claims if claim.label not in ("I", "U")]


def test_what_was_read_in_code_is_not_said_to_be_from_a_paper(written: Registry) -> None:
    read = [claim for claim in map(written.claim, written.ids) if any(text.startswith("read in ") for text in claim.assumes)]
    assert len(read) > 60 and not [claim.id for claim in read if claim.source.cites]


def test_an_index_of_another_schema_or_none_is_refused(tmp_path) -> None:
    file = tmp_path / "index.tsv"
    for text in ("rollbook.claims-index/9\n", "{", "", "rollbook.claims-index/1\n@x", 'rollbook.claims-index/1\na.b.c\t{"label'):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(EvidenceError, match="compiled claims"):
            index.load(file)
    with pytest.raises(EvidenceError, match="cannot be read"):
        index.load(tmp_path / "none.tsv")


def test_the_example_of_the_format_is_read(tmp_path) -> None:
    example = (CLAIMS / "README.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    (tmp_path / "mistral.yaml").write_text(example, encoding="utf-8")
    assert [read_folder(tmp_path).claim(f"mistral.magistral-small.{name}").label
            for name in ("epsilon_high", "general_share", "learning_rate", "ratio_to")] == ["D", "D", "U", "I"]


def test_everything_known_and_unknown_about_a_release_can_be_listed() -> None:
    about = list(builtin().about("Magistral Small (2025-06)"))
    names = {claim.id for claim in about}
    assert {"mistral.magistral-small.epsilon_high", "mistral.magistral.objective"} <= names
    assert [claim.label for claim in about if claim.id == "mistral.magistral-small.learning_rate"] == ["U"]
    assert not any(name.startswith("mistral.magistral-medium.") for name in names)
