"""`rollbook evidence`: what is claimed of a release, the matrix of all, a configuration or two recipes held against it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.evidence.claims import Claim, Release
    from rollbook.evidence.config_check import Comparison
    from rollbook.evidence.matrix import Row
    from rollbook.evidence.registry import Registry
    from rollbook.evidence.release_score import Score
    from rollbook.recipes import Entry

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
COLOURS = {"D": "blue", "C": "green", "R": "magenta", "I": "yellow", "U": "bright_black"}
SAYS = 96           # characters of a claim's sentence in a list


@click.group()
def evidence() -> None:
    """Show what is claimed of models and releases, and hold configurations and recipes against it."""


@evidence.command("check-config")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="The checkpoint that the configuration belongs to, as the claims name it.")
@JSON
@click.pass_context
def check_config(ctx: click.Context, file: Path, model: str, as_json: bool) -> None:
    """Compare FILE, a config.json, with every claim about a model's configuration. Exits 1 where one differs."""
    from rollbook.evidence.config_check import check
    from rollbook.evidence.registry import builtin

    found = check(file, model, builtin())
    if as_json:
        _print_json([{"claim": item.claim.id, "quantity": item.quantity, "claimed": item.claim.value, "found": item.found,
                      "outcome": item.outcome, "why": item.why} for item in found])
    else:
        _show_comparisons(found)
    ctx.exit(1 if any(item.outcome == "differs" for item in found) else 0)


def _show_comparisons(found: Sequence[Comparison]) -> None:
    from rollbook.evidence.agreement import shown

    words = {"agrees": click.style("agrees   ", fg="green"), "differs": click.style("DIFFERS  ", fg="red", bold=True),
             "not_shown": click.style("not shown", fg="yellow")}
    for item in found:
        note = f"  ({item.why})" if item.why and item.outcome != "differs" else ""
        held = "-" if item.found is None else f"{item.found:,}" if isinstance(item.found, int) else str(item.found)
        click.echo(f"{words[item.outcome]}  {item.quantity}: {held} against {shown(item.claim)}, {item.claim.id}{note}")
    counts = Counter(item.outcome for item in found)
    click.echo(f"{counts['agrees']} agree, {counts['differs']} differ, {counts['not_shown']} are not shown by this file")


@evidence.command("show")
@click.argument("name", metavar="CLAIM|RELEASE|MODEL")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show one claim, or all that is known and unknown of a release or of one of its models."""
    from rollbook.evidence.errors import EvidenceError
    from rollbook.evidence.registry import builtin
    from rollbook.records.codec import nearest

    registry = builtin()
    if name in registry.ids:
        _show_claim(registry, registry.claim(name), as_json)
        return
    model = next((one for one in registry.releases.values() if name in one.models), None)
    names = [*registry.releases, *(one.subject for one in registry.releases.values())]
    if model is None and name not in names:
        raise EvidenceError("neither a claim nor a release nor a model", got=repr(name), why="nothing is known by this name here",
                            fix=f"nearest releases: {nearest(name, names)}; nearest claims: {nearest(name, list(registry.ids))}")
    release = model or registry.release(name)
    claims = [claim for claim in registry.about(release.id) if model is None or claim.model == name]
    if as_json:
        _print_json({"release": dataclasses.asdict(release), "claims": [_document(claim) for claim in claims],
                     "score": _score_document(_score(registry, release.id))})
    else:
        _show_release(registry, release, claims)


def _show_claim(registry: Registry, claim: Claim, as_json: bool) -> None:
    from rollbook.evidence.agreement import shown
    from rollbook.evidence.vocabulary import DOCUMENTS, LABELS

    if as_json:
        _print_json(_document(claim))
        return
    rows: list[tuple[str, str | None]] = [
        ("says", claim.says), ("value", None if claim.label == "U" else shown(claim)),
        ("label", f"{claim.label}, {LABELS[claim.label]}"),
        ("about", f"{registry.release(claim.release).subject}, {claim.stage}, {claim.quantity}"), ("model", claim.model),
        ("assumes", "; ".join(claim.assumes) or None),
        ("source", "; ".join((f"{DOCUMENTS[claim.source.document].title}, section {claim.source.section}", *claim.source.cites))),
        ("file", claim.at), ("artifact", str(claim.artifact) if claim.artifact else None), ("run", claim.run),
        ("usable for", ", ".join(registry.release(one).subject for one in claim.scope) or "no recipe"),
        ("objectives", ", ".join(claim.objectives) or None), ("note", claim.note)]
    rows += [("not for", f"{registry.release(item.release).subject}: {item.reason}") for item in claim.not_for]
    rows += [("contradicted by", f"{other.id}: {shown(other)}") for other in registry.rivals(claim)]
    click.echo(claim.id)
    for key, text in rows:
        if text is not None:
            click.echo(f"  {key:<15}  {text}")


def _show_release(registry: Registry, release: Release, claims: Sequence[Claim]) -> None:
    from rollbook.evidence.matrix import ASPECTS, aspect
    from rollbook.evidence.vocabulary import LABELS

    counts: Counter[str] = Counter(claim.label for claim in claims)
    listed = ", ".join(f"{counts[label]} {word}" for label, word in LABELS.items() if counts[label])
    click.echo(f"{release.subject}, {release.laboratory}" + (f": {', '.join(release.models)}" if release.models else ""))
    if release.note:
        click.echo(f"  {release.note}")
    click.echo(f"  {len(claims)} claims: {listed or 'none'}")
    groups: dict[str, list[Claim]] = {title: [] for title in (*ASPECTS.values(), "Evaluation, serving, orchestration")}
    for claim in claims:
        name = aspect(claim)
        groups[ASPECTS[name] if name else "Evaluation, serving, orchestration"].append(claim)
    for title, held in groups.items():
        known = [claim for claim in held if claim.label != "U"]
        _list(title, known)
    _list("Unknown", [claim for claim in claims if claim.label == "U"])
    click.echo(f"\nRelease: {_score(registry, release.id)} (`rollbook evidence score {release.id}`)")


def _list(title: str, claims: Sequence[Claim]) -> None:
    from rollbook.evidence.agreement import shown

    if not claims:
        return
    click.echo(f"\n{title}")
    for claim in claims:
        value = "" if claim.label == "U" or claim.value is None else f" = {_clip(shown(claim), 60)}"
        model = f" [{claim.model}]" if claim.model else ""
        click.echo(f"  {_label(claim.label)} {claim.quantity}{value}{model}")
        click.echo(f"      {_clip(claim.says, SAYS)}  ({claim.source.document} {claim.source.section}; {claim.id})")


@evidence.command("matrix")
@click.argument("releases", nargs=-1, metavar="[RELEASE]...")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write it, with every claim, as a page.")
@JSON
def matrix(releases: tuple[str, ...], html: Path | None, as_json: bool) -> None:
    """Show what each release (default: all) discloses of eight aspects, and the time line."""
    from rollbook.evidence.matrix import matrix as made
    from rollbook.evidence.registry import builtin

    registry = builtin()
    rows = made(registry, releases)
    if html is not None:
        from rollbook.records.errors import RollbookError
        from rollbook.report.matrix_page import render

        try:
            html.write_text(render(registry, releases), encoding="utf-8")
        except OSError as error:
            raise RollbookError(f"{html} could not be written", got=error.strerror or type(error).__name__,
                                fix="give a file in a folder that exists and may be written") from error
        click.echo(f"matrix: {html}", err=as_json)
    if as_json:
        _print_json([_row_document(row) for row in rows])
    elif html is None:
        _show_matrix(rows)
        _show_timeline(registry, {row.release.id for row in rows})


def _show_matrix(rows: Sequence[Row]) -> None:
    from rollbook.evidence.matrix import ASPECTS
    from rollbook.evidence.vocabulary import LABELS

    heads = [title.split("-")[0].split()[-1] for title in ASPECTS.values()]
    name = max(len(row.release.subject) for row in rows)
    cells = [[" ".join(f"{label}{count}" for label, count in cell.counts.items()) or "·" for cell in row.cells.values()]
             for row in rows]
    widths = [max(len(head), *(len(line[index]) for line in cells)) for index, head in enumerate(heads)]
    click.echo("  ".join(f"{label} {word}" for label, word in LABELS.items()) + "  · no claim\n")
    titles = [head.ljust(width) for head, width in zip(heads, widths, strict=True)]
    click.echo(click.style("  ".join([" " * name, *titles]).rstrip(), bold=True))
    laboratory = None
    for row, line in zip(rows, cells, strict=True):
        if row.release.laboratory != laboratory:
            laboratory = row.release.laboratory
            click.echo(click.style(laboratory, bold=True))
        painted = (_painted(text, width) for text, width in zip(line, widths, strict=True))
        click.echo("  ".join([row.release.subject.ljust(name), *painted]).rstrip())


def _painted(text: str, width: int) -> str:
    words = (click.style(word, fg=COLOURS.get(word[0])) for word in text.split())
    return " ".join(words) + " " * (width - len(text))


def _show_timeline(registry: Registry, wanted: set[str]) -> None:
    from rollbook.evidence.matrix import timeline

    click.echo("\nTime line (~ the sources give no date)")
    for event in timeline(registry):
        if event.release.id in wanted:
            date = ("" if event.sourced else "~") + event.release.date
            by = f": {_clip('; '.join(event.trained_by), 90)}" if event.trained_by else ""
            click.echo(f"  {date:<11} {event.release.name}{by}")


@evidence.command("score")
@click.argument("releases", nargs=-1, required=True, metavar="RELEASE...")
@JSON
def score(releases: tuple[str, ...], as_json: bool) -> None:
    """Show which of the ten parts of a reproducible release the sources of RELEASE speak of."""
    from rollbook.evidence.registry import builtin

    found = [_score(builtin(), release) for release in releases]
    if as_json:
        _print_json([_score_document(one) for one in found])
        return
    for one in found:
        click.echo(f"{builtin().release(one.release).subject}: {one}")
        for part in one.parts:
            labels: Counter[str] = Counter(claim.label for claim in part.claims)
            counts = " ".join(f"{label}{labels[label]}" for label in COLOURS if labels[label])
            click.echo(f"{part.number:>4}  {part.title}: {part.status}" + (f" ({counts})" if counts else ""))
    click.echo("A source that describes a part has not released it; `rollbook checklist RUN` scores artifacts.")


@evidence.command("compare")
@click.argument("laboratories", nargs=-1, metavar="[LABORATORY]...")
@JSON
def compare(laboratories: tuple[str, ...], as_json: bool) -> None:
    """Show what laboratories (default: deepseek, zhipu, moonshot) disclose of ten items, side by side."""
    from rollbook.evidence.disclosure import comparison
    from rollbook.evidence.registry import builtin

    registry = builtin()
    found = comparison(registry, laboratories or ("deepseek", "zhipu", "moonshot"))
    if as_json:
        _print_json({item: {name: {"count": answer.count, "claims": [claim.id for claim in answer.claims]}
                            for name, answer in row.items()} for item, row in found.items()})
        return
    from rollbook.cli_card import wrapped

    for item, row in found.items():
        click.echo(click.style(item, bold=True))
        for name, answer in row.items():
            lines = wrapped("; ".join(_said(registry, claim) for claim in answer.claims) or "· no claim", 14)
            click.echo(f"  {name:<11} " + "\n".join(lines).lstrip() + (f"; {answer.count - len(answer.claims)} more"
                                                                     if answer.count > len(answer.claims) else ""))


def _said(registry: Registry, claim: Claim) -> str:
    from rollbook.evidence.agreement import shown

    whose = "" if ".lineage." in claim.id else f", {registry.release(claim.release).name}"
    return f"{claim.label} {shown(claim)}{whose}"


@evidence.command("diff")
@click.argument("first", metavar="RECIPE_A")
@click.argument("second", metavar="RECIPE_B")
@click.option("--scale", default="full", show_default=True, help="lab, tiny, or full (the true scale).")
@JSON
def diff(first: str, second: str, scale: str, as_json: bool) -> None:
    """Show where two recipes' values, or the labels of these, differ."""
    from rollbook.cli_output import table
    from rollbook.recipes import load
    from rollbook.recipes.compare import differences

    one, two = load(first), load(second)
    found = differences(one, two, scale)
    if as_json:
        _print_json([{"path": item.path, "first": _told(item.first, dict), "second": _told(item.second, dict)} for item in found])
        return
    click.echo(f"{one.name}, {one.subject}, against {two.name}, {two.subject}, scale {scale}: {len(found) or 'no'} "
               f"difference{'' if len(found) == 1 else 's'}")
    table("Differences", ("value", one.name, two.name),
          [(item.path, _told(item.first, _words), _told(item.second, _words)) for item in found])


def _told(entry: Entry | None, form: Callable[..., Any]) -> Any:
    if entry is None:
        return None if form is dict else "no such value"
    return form(value=entry.value, label=entry.label, claim=entry.claim, reason=entry.reason)


def _words(*, value: Any, label: str | None, claim: str | None, reason: str | None) -> str:
    from rollbook.cli_output import text

    about = claim or reason
    return ("?" if label == "U" else text(value)) + (f" [{label}]" if label else "") + (f" {_clip(about, 50)}" if about else "")


def _score(registry: Registry, release: str) -> Score:
    from rollbook.evidence.release_score import score as scored

    return scored(registry, release)


def _score_document(found: Score) -> dict[str, Any]:
    return {"release": found.release, "described": found.described, "of": len(found.parts),
            "parts": [{"number": part.number, "title": part.title, "status": part.status,
                       "claims": [claim.id for claim in part.claims]} for part in found.parts]}


def _row_document(row: Row) -> dict[str, Any]:
    from rollbook.evidence.release_score import of_claims

    every = [claim for cell in row.cells.values() for claim in cell.claims] + list(row.others)
    return {"release": dataclasses.asdict(row.release),
            "aspects": {name: {"state": cell.state, "labels": cell.counts, "claims": [claim.id for claim in cell.claims]}
                        for name, cell in row.cells.items()},
            "others": [claim.id for claim in row.others], "described_parts": of_claims(row.release.id, every).described}


def _document(claim: Claim) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(claim).items() if value not in (None, (), [])}


def _label(label: str) -> str:
    return click.style(f"{label:<3}", fg=COLOURS[label], bold=True)


def _clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest - 1]}…"


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=1, ensure_ascii=False))
