"""The texts of token ids, from the tokenizer that the run put on record; without it there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.records import StageEnd, TokenizerFile
from rollbook.report.facts import Facts

REPLACEMENT = "\ufffd"
BYTES = 4       # of the longest UTF-8 character


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTexts:
    """A loaded tokenizer, or the reason why there is none."""

    tokenizer: Any | None
    absent: str | None

    def of(self, ids: Sequence[int]) -> str:
        """The text of these tokens together, special ones shown; holds the replacement sign where a character is cut."""
        assert self.tokenizer is not None
        try:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
        except (OverflowError, TypeError, ValueError):
            return ""

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        """(how many tokens, their text) in order: one token each, or the few that only together make a character."""
        at = 0
        while at < len(ids):
            length = next((n for n in range(1, BYTES + 1) if at + n <= len(ids) and self._whole(ids[at:at + n])), None)
            yield length or 1, self.of(ids[at:at + length]) if length else f"⟨token {ids[at]}⟩"
            at += length or 1

    def _whole(self, ids: Sequence[int]) -> bool:
        text = self.of(ids)
        return bool(text) and REPLACEMENT not in text


def token_texts(facts: Facts) -> TokenTexts:
    """The tokenizer on record, else that of the newest checkpoint that has one."""
    record = facts.last(TokenizerFile)
    found = None if record is None else _recorded(facts, record)
    if found is not None:
        return TokenTexts(tokenizer=found, absent=None)
    names = [end.checkpoint for end in reversed(facts.all(StageEnd)) if end.checkpoint]
    folders = [facts.root / "checkpoints" / name.rpartition("/")[2] for name in names]
    for folder in folders:
        found = _load(folder / "tokenizer.json")
        if found is not None:
            return TokenTexts(tokenizer=found, absent=None)
    return TokenTexts(tokenizer=None, absent="no checkpoint of the run holds a readable tokenizer.json" if folders
                      else "no tokenizer is on record")


def _recorded(facts: Facts, record: TokenizerFile) -> Any | None:
    """The tokenizer in the run's own artifacts; None where they do not hold a readable one."""
    try:
        from tokenizers import Tokenizer
        return Tokenizer.from_str(json.loads(facts.ledger.get(record.blob))["tokenizer"])
    except Exception:       # the blob is gone or damaged, or the library cannot read it: it raises bare Exception
        return None


def _load(file: Path) -> Any | None:
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
        return Tokenizer.from_file(str(file))
    except Exception:       # the library raises bare Exception for a file it cannot read
        return None


def owners(counts: Mapping[str, int]) -> str:
    """`policy 12, user 40` tokens."""
    return ", ".join(f"{owner} {count}" for owner, count in counts.items())
