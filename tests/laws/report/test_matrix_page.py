"""The matrix page leads from every count to its claims, holds no script and asks the network for nothing."""

from __future__ import annotations

import dataclasses

import pytest
from test_report import Page

from rollbook.evidence.registry import Registry, builtin
from rollbook.report.matrix_page import render

NAMES = ("magistral", "magistral-small", "mistral-small-4", "deepseek-v4")


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(builtin(), NAMES))


def attributes(page: Page, name: str) -> list[str]:
    return [value or "" for key, value in page.attributes if key == name]


def test_every_count_leads_to_a_place_on_the_page(page: Page) -> None:
    targets = [link.removeprefix("#") for link in attributes(page, "href") if link.startswith("#")]
    assert targets and set(targets) <= set(attributes(page, "id"))
    assert len(attributes(page, "id")) == len(set(attributes(page, "id")))


def test_the_page_has_no_script_and_no_other_address(page: Page) -> None:
    assert "script" not in page.tags
    assert {link for link in attributes(page, "href") if not link.startswith("#")} == {"data:,"}
    assert any("default-src 'none'" in value for value in attributes(page, "content"))


def test_each_claim_of_a_release_stands_once_with_its_label_value_and_source(page: Page) -> None:
    own = [claim for claim in map(builtin().claim, builtin().ids) if claim.release in NAMES]
    assert {f"claim-{claim.id}" for claim in own} == {name for name in attributes(page, "id") if name.startswith("claim-")}
    for words in ("The upper clip width is larger because the cold start", "case-study, 6.9; Magistral, arXiv 2506.10910",
                  "2048 sequences per batch", "assumes: generation is asynchronous"):
        assert words in page.text, words


def test_what_is_said_of_another_release_and_in_scope_is_linked_and_of_a_release_not_shown_is_only_named(page: Page) -> None:
    links = attributes(page, "href")
    assert "#claim-mistral.magistral.objective" in links
    assert "#claim-mistral.mistral-small-3.1.layers" not in links and "mistral.mistral-small-3.1.layers" in page.text


def test_a_cell_without_claims_is_no_zero(page: Page) -> None:
    titles = page.titles.split(" | ")
    assert "no claim" in titles and not [title for title in titles if title.startswith("0 ")]


def test_the_page_of_everything_is_complete_and_its_links_hold() -> None:
    whole = Page(render(builtin()))
    targets = {link.removeprefix("#") for link in attributes(whole, "href") if link.startswith("#")}
    assert targets <= set(attributes(whole, "id"))
    assert sum(name.startswith("claim-") for name in attributes(whole, "id")) == len(builtin().ids)


def test_no_text_of_a_claim_acts_on_the_page() -> None:
    release = builtin().release("magistral-small")
    licence = builtin().claim("mistral.magistral-small.license")
    claim = dataclasses.replace(licence, says="<script>alert(1)</script>\x1b[31m\u202e")
    source = render(Registry({release.id: release}, {claim.id: claim}))
    assert "<script" not in source and "\x1b" not in source and "\u202e" not in source
    assert "&lt;script&gt;" in source
