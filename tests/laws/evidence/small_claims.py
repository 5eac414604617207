"""One small laboratory's file, and what becomes of it when a piece of its text is changed."""

from __future__ import annotations

from pathlib import Path

from rollbook.evidence.registry import Registry, read_folder

TEXT = """\
schema: rollbook.claims/1
laboratory: test
name: A laboratory

releases:
  old: {name: Old, date: 2025-04, models: [old-8b]}
  new: {name: New, date: 2026-03}

papers:
  report: {title: The report, where: section 2}

groups:
  old:
    release: old
    document: case-study
    section: "6.9"
    cites: [report]
    not_for: {new: "New came a year later"}
    claims:
      high: {label: D, stage: rl, value: 0.3, unit: number, says: The upper clip is three tenths.}
      share: {label: D, stage: sft, value: 0.1, unit: fraction, denominator: of examples, says: A tenth is general.}
      layers: {label: C, stage: architecture, model: old-8b, value: 2, unit: layers, artifact: {config: a/b}, check: layers,
        says: It has two layers.}
      low: {label: U, stage: rl, says: The lower clip is not given.}
      ratio: {label: I, stage: rl, value: sampler, assumes: [generation is asynchronous], says: The old policy is the sampler.}
      code: {label: C, stage: rl, value: 8, unit: responses, artifact: {repository: a/c, commit: abc, file: run.sh},
        check: {contains: GROUP=8}, says: The script draws eight.}
"""


def folder(path: Path, **files: str) -> Path:
    """The files written below `path`, each under its name."""
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return path


def changed(path: Path, old: str, new: str) -> Registry:
    """The registry of the small file with one piece of its text replaced."""
    assert TEXT.count(old) == 1, old
    return read_folder(folder(path, test=TEXT.replace(old, new)))
