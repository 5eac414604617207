"""A confirmed artifact that is source text, looked at again in a checkout of its repository."""

from __future__ import annotations

from pathlib import Path

from rollbook.evidence.claims import Claim, Code
from rollbook.evidence.errors import EvidenceError


def check_code(claim: Claim, checkout: Path) -> None:
    """Raises EvidenceError unless the claim's file in `checkout` holds the claim's text. The checkout must be at its commit."""
    code = claim.artifact
    if not isinstance(code, Code):
        raise EvidenceError(f"{claim.at}: {claim.id} names no source text", got=claim.label,
                            fix="only a claim with `artifact: {repository, commit, file}` is checked so")
    file = checkout / code.file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{claim.at}: {claim.id}: {code.file} cannot be read", got=str(error),
                            fix=f"check out {code.repository} at {code.commit}") from None
    if code.contains not in text:
        raise EvidenceError(f"{claim.at}: {claim.id}: {code.file} does not hold its text", got=f"no {code.contains!r}",
                            why="what was confirmed there is not there", fix=f"check out {code.repository} at {code.commit}")
