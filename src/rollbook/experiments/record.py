"""A verdict as an R claim: a claims file of its own, which the loader of all claims reads."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.evidence import index
from rollbook.evidence.registry import CLAIMS
from rollbook.records import canonical, digest

LABORATORY = "rollbook"
RELEASE = "rollbook-experiments"
YEAR = "2026"
RESULTS = Path(__file__).parent / "results"


def run_id(result: Mapping[str, Any]) -> str:
    """What an R claim names as its run: the experiment and the hash of its result, which holds the hash of every run."""
    return f"experiment:{result['name']}:{digest(canonical(result))}"


def claims_text(results: Sequence[Mapping[str, Any]]) -> str:
    """The claims file of the results, one group each."""
    lines = ["# Written by `rollbook evidence rerun`; each claim is a result in experiments/results.",
             "schema: rollbook.claims/1", f"laboratory: {LABORATORY}", "name: Experiments of this program", "", "releases:",
             f"  {RELEASE}: {{name: Experiments of this program, date: \"{YEAR}\"}}", "", "groups:"]
    for result in sorted(results, key=lambda one: str(one["name"])):
        lines += [f"  {result['name']}:", f"    release: {RELEASE}", "    document: systems", "    section: Controlled claims",
                  "    claims:", *_claims(result)]
    return "\n".join(lines) + "\n"


def results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results that are kept."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def known_runs(folder: Path = RESULTS) -> frozenset[str]:
    """The runs that R claims may name."""
    return frozenset(run_id(result) for result in results(folder))


def keep(result: Mapping[str, Any], folder: Path = RESULTS, claims: Path = CLAIMS) -> Path:
    """Keeps a result and writes the claims of all results, and their index, anew; the file of the claims."""
    folder.mkdir(exist_ok=True)
    (folder / f"{result['name']}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False, sort_keys=True) + "\n",
                                                   encoding="utf-8")
    file = claims / f"{LABORATORY}.yaml"
    file.write_text(claims_text(results(folder)), encoding="utf-8")
    if claims == CLAIMS:
        index.main()
    return file


def _claims(result: Mapping[str, Any]) -> list[str]:
    verdict, effect = result["verdict"], result["verdict"]["effect"]
    seeds = sorted({run["seed"] for run in result["runs"]})
    about = f"{result['hypothesis'].rstrip('.')}: {verdict['word']}, {verdict['why']}."
    note = f"tries {result['claim']} at scale {result['scale']}, {len(result['runs'])} runs, seeds {', '.join(map(str, seeds))}"
    name = str(result["name"]).replace("-", "_")               # two experiments answer two questions
    held = [_claim("verdict", {"label": "R", "stage": "rl", "quantity": f"{name}_verdict", "value": verdict["word"],
                               "run": run_id(result), "note": note, "says": about})]
    if effect is not None:
        says = (f"{result['treatment']} less {result['baseline']}, {result['metric']}: {effect['estimate']:+.4f}, "
                f"95% interval {effect['low']:+.4f} to {effect['high']:+.4f}.")
        held.append(_claim("effect", {"label": "R", "stage": "rl", "quantity": f"{name}_effect", "unit": "points",
                                      "value": round(100 * effect["estimate"], 4),
                                      "denominator": "of the held-out tasks, mean over seeds", "run": run_id(result),
                                      "says": says}))
    return held


def _claim(name: str, fields: Mapping[str, Any]) -> str:
    """One claim over several short lines; JSON strings are YAML's."""
    return f"      {name}:\n        {{" + ",\n         ".join(f"{key}: {_quoted(item)}" for key, item in fields.items()) + "}"


def _quoted(item: Any) -> str:
    if item in ("R", "rl", "points"):
        return str(item)
    # a quoted text may go on in the next line: the break is read as a space
    return "\n           ".join(textwrap.wrap(json.dumps(item, ensure_ascii=False), 105, break_long_words=False,
                                             break_on_hyphens=False))
