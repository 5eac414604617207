"""The evidence matrix as one static page: systems by aspects, the time line, every claim behind a cell. No script, no network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rollbook.evidence.agreement import shown
from rollbook.evidence.claims import Claim
from rollbook.evidence.matrix import ASPECTS, STATES, Cell, Row, aspect, matrix, timeline
from rollbook.evidence.registry import Registry
from rollbook.evidence.release_score import Score, of_claims
from rollbook.evidence.vocabulary import DOCUMENTS, LABELS
from rollbook.report.text import ABSENT, clip, visible

TEMPLATES = Path(__file__).parent / "templates"
ELSEWHERE = "elsewhere"


def render(registry: Registry, releases: Sequence[str] = ()) -> str:
    """The page of all releases, or of those named."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_shown,
                              trim_blocks=True, lstrip_blocks=True)
    style = "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "matrix.css"))
    return environment.get_template("matrix.html").render(style=Markup(style), **content(registry, releases))


def _shown(value: Any) -> Any:
    """Every string of the page passes here: clipped, and nothing in it acts."""
    if value is None:
        return ABSENT
    return visible(clip(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def content(registry: Registry, releases: Sequence[str] = ()) -> dict[str, Any]:
    """What the template is given."""
    rows = matrix(registry, releases)
    laboratories: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        laboratories[row.release.laboratory].append(_line(row))
    wanted = {row.release.id for row in rows}
    return {
        "laboratories": laboratories, "aspects": ASPECTS, "states": STATES, "labels": LABELS,
        "events": [event for event in timeline(registry) if event.release.id in wanted],
        "cards": [_card(row, registry) for row in rows], "here": wanted,
        "documents": {key: document.title for key, document in DOCUMENTS.items()},
        "counts": {"claims": len(registry.ids), "releases": len(registry.releases), "shown": len(rows)},
    }


def _line(row: Row) -> dict[str, Any]:
    score = _score(row)
    return {"release": row.release, "score": score,
            "cells": [{"aspect": name, "title": title, "state": state_of(name, row.cells[name]), "counts": row.cells[name].counts}
                      for name, title in ASPECTS.items()]}


def state_of(name: str, cell: Cell) -> str:
    """How a cell is coloured: to say what a release lacks for a reproduction is not to show one."""
    return "partial" if name == "reproduction" and cell.state == "known" else cell.state


def _score(row: Row) -> Score:
    return of_claims(row.release.id, [claim for cell in row.cells.values() for claim in cell.claims] + list(row.others))


def _card(row: Row, registry: Registry) -> dict[str, Any]:
    """The claims of one release by aspect: its own in full, those of others that it may use by name."""
    parts = []
    for name, title in (*ASPECTS.items(), (ELSEWHERE, "Evaluation, serving, orchestration")):
        claims = row.others if name == ELSEWHERE else row.cells[name].claims  # type: ignore[index]
        own = [claim for claim in claims if claim.release == row.release.id]
        shared = [claim for claim in claims if claim.release != row.release.id]
        if claims:
            parts.append({"aspect": name, "title": title, "own": [_claim(claim, registry) for claim in sorted(own, key=_order)],
                          "shared": shared})
    return {"release": row.release, "score": _score(row), "parts": parts}


def _order(claim: Claim) -> tuple[int, str]:
    """What is known before what is inferred, and the unknown last."""
    return list(LABELS).index(claim.label), claim.id


def _claim(claim: Claim, registry: Registry) -> dict[str, Any]:
    source = "; ".join((f"{claim.source.document}, {claim.source.section}", *claim.source.cites))
    return {"claim": claim, "value": shown(claim) if claim.label != "U" else None, "source": source, "aspect": aspect(claim),
            "rivals": tuple(registry.rivals(claim))}
