"""The document of experiments says what the kept results say, and each has its picture."""

import importlib.util
from pathlib import Path

from rollbook.experiments.record import results

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("figure_experiments", ROOT / "scripts/figure_experiments.py")
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)


def test_the_page_is_what_the_script_writes_of_the_kept_results():
    kept = results()
    assert (ROOT / "docs/experiments.md").read_text(encoding="utf-8") == SCRIPT.page(kept), "run scripts/figure_experiments.py"
    assert all(SCRIPT.picture(one).exists() for one in kept)
