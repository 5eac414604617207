"""Precision and recall of the guard on labelled transcripts: `python -m rollbook.environments.guard [FILE.yaml ...]`.

Without a file: on the half of its own that was written before its rules.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rollbook.environments.guard.corpus import TRANSCRIPTS, measured, read_transcripts
from rollbook.environments.guard.rules import RULES
from rollbook.records import RollbookError


def main(arguments: list[str]) -> int:
    """Prints one block for each file; 2 where one cannot be read."""
    if arguments and arguments[0].startswith("-"):
        print(__doc__)
        return 0
    for name in arguments or [str(TRANSCRIPTS / "blind.yaml")]:
        try:
            transcripts = read_transcripts(Path(name))
        except RollbookError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        found = measured(transcripts, RULES)
        why = {transcript.id: transcript.why for transcript in transcripts}
        print(f"{name}: rules version {found.version}, {found.cheating} cheating and {found.honest} honest transcripts")
        print(f"  precision {_share(found.precision)}  recall {_share(found.recall)}")
        for missed in found.missed:
            print(f"  missed   {missed}: {why[missed]}")
        for wrong, rules in found.wrongly.items():
            print(f"  wrongly  {wrong}: {', '.join(rules)} ({why[wrong]})")
        print(f"  found by: {', '.join(f'{rule} {count}' for rule, count in found.counts.items())}")
    return 0


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
