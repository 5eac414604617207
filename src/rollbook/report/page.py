"""`report.html`: one static page of a run, drawn from its records. It holds no script and asks the network for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rollbook.ledger import Repair, Rollback
from rollbook.ledger.layout import refusing, write_durably
from rollbook.records import AuditReport, GateDecision, ResolvedRecipe, RunEnd, SplitManifest, StageEnd, StepReport
from rollbook.records.graph import order
from rollbook.records.recipe import Tiny
from rollbook.report import curves, heldout, tables, text
from rollbook.report.facts import Facts, read_facts
from rollbook.report.kept import kept
from rollbook.report.transcripts import transcripts

NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"


def write_report(run: Path) -> Path:
    """Writes RUN/report.html from what the run holds now, whole or not at all; its path. LedgerError for what is no run."""
    facts = read_facts(run)
    page = render(facts)
    target = facts.root / NAME
    with refusing(f"{NAME} could not be written"):
        write_durably(target, page.encode("utf-8"))
    return target


def render(facts: Facts) -> str:
    """The page of a run."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_shown,
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": text.percent, "points": text.points, "p_value": text.p_value, "short": text.short,
                            "duration": text.duration, "number": text.number}
    environment.globals |= {"interval_text": heldout.interval_text}
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html").render(style=style, **content(facts))


def _shown(value: Any) -> Any:
    """Every string of the page passes here: clipped, and nothing in it acts."""
    if value is None:
        return text.ABSENT
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.visible(text.clip(value))
    return value


def content(facts: Facts) -> dict[str, Any]:
    """What the template is given."""
    recipe = facts.last(ResolvedRecipe)
    return drawn(facts) | {
        "transcripts": transcripts(facts), "values": tables.recipe_tables(recipe) if recipe else None,
        "stages": tables.stage_table(facts), "versions": tables.version_table(facts), "files": tables.file_table(facts),
        "manifest": manifest_parts(facts), "audit": facts.last(AuditReport),
    }


def drawn(facts: Facts) -> dict[str, Any]:
    """What the headline and the curves are given; the viewer shows these too."""
    recipe = facts.last(ResolvedRecipe)
    points = heldout.eval_points(facts)
    charts, unobserved = curves.training_charts(facts)
    return {
        "head": headline(facts, recipe), "faults": facts.faults, "gains": heldout.gains(facts), "points": points,
        "full": [point for point in points if not point.probe],
        "curve_wide": heldout.heldout_curve(points, width=760, css="chart wide") if points else None,
        "curve_narrow": heldout.heldout_curve(points, width=360, css="chart narrow") if points else None,
        "split": facts.last(SplitManifest), "charts": charts, "unobserved": unobserved, "numbers": curves.numbers(facts),
        "steps": len(facts.all(StepReport)), "census": tables.census_table(facts), "selections": tables.selections(facts),
        "pools": tables.pools(facts),
        "recipe": recipe, "spoken": lambda stage: heldout.spoken(stage, recipe), "gate": facts.last(GateDecision),
        "assumed": recipe.assumed if recipe else None, "kept": kept(facts.root, facts.ledger.genesis),
    }


def headline(facts: Facts, recipe: ResolvedRecipe | None) -> dict[str, Any]:
    """Name, status and the cost of the run; what the log does not say yet is None."""
    end = facts.last(RunEnd)
    told = facts.manifest
    done = {stage.stage for stage in facts.all(StageEnd)}
    planned = order(recipe.settings.stages, recipe.settings.rewards) if recipe else ()
    resumed = len(facts.all(Rollback)) + len(facts.all(Repair))
    return {
        "title": recipe.title if recipe else told.get("name"), "name": recipe.name if recipe else told.get("name"),
        "subject": recipe.subject if recipe else None, "scale": recipe.scale if recipe else told.get("scale"),
        "seed": recipe.settings.run.seed if recipe else told.get("seed"), "model": _model(recipe, told.get("model")),
        "status": end.status if end else "not ended", "detail": end.detail if end else "",
        "wall": end.observed.get("wall_s") if end else None, "memory": end.observed.get("peak_rss_gib") if end else None,
        "resumed": resumed, "began": text.moment(facts.began), "seen": text.moment(facts.seen),
        "logged_s": facts.seen - facts.began if facts.seen is not None and facts.began is not None else None,
        "events": facts.events, "done": len(done & set(planned)), "planned": len(planned),
        "waiting": [name for name in planned if name not in done],
    }


def _model(recipe: ResolvedRecipe | None, told: Any) -> str | None:
    if recipe is None:
        return str(told) if told is not None else None
    model = recipe.settings.model
    if isinstance(model, Tiny):
        return f"{model.architecture} from scratch, {model.layers} layers of width {model.hidden}"
    return model.path


def manifest_parts(facts: Facts) -> list[tuple[str, list[tuple[str, str]]]]:
    """The manifest in groups: what identifies the run, then each of its mappings."""
    told = facts.manifest
    plain = {key: value for key, value in told.items() if not isinstance(value, dict)}
    groups = [("Identity", tables.flat({**plain, "genesis": facts.ledger.genesis}))]
    return groups + [(str(key).capitalize(), tables.flat(value)) for key, value in told.items() if isinstance(value, dict)]
