"""All claims in one text file, compiled from the YAML files, a line each, so that reading takes milliseconds.

The first line is the schema; then a line for each release (`@id`, tab, JSON) and for each claim (`id`, tab, JSON), sorted.
`python -m rollbook.evidence.index` writes the file again after a claims file has changed; a test holds the two equal.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.evidence.claims import Boundary, Claim, Code, Config, Release, Source
from rollbook.evidence.errors import EvidenceError

SCHEMA = "rollbook.claims-index/1"
FILE = Path(__file__).parent / "index.tsv"
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Claim) if field.default is not dataclasses.MISSING}


def compiled(releases: Mapping[str, Release], claims: Mapping[str, Claim]) -> str:
    """The index's text; fields at their default are left out."""
    return "\n".join([SCHEMA, *(f"@{key}\t{_dump(dataclasses.asdict(releases[key]))}" for key in sorted(releases)),
                      *(f"{key}\t{_dump(_document(claims[key]))}" for key in sorted(claims))]) + "\n"


def _dump(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _document(claim: Claim) -> dict[str, Any]:
    body = dataclasses.asdict(claim) | {"at": claim.at.partition(":")[0]}  # no line, so that one edit changes one entry
    return {key: value for key, value in body.items() if key != "id" and not (key in _DEFAULTS and value == _DEFAULTS[key])}


def load(file: Path = FILE) -> tuple[dict[str, Release], dict[str, str]]:
    """The releases, and each claim's JSON by id; `claim` makes the record of one."""
    fix = "run `python -m rollbook.evidence.index`"
    try:
        schema, *lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError("the compiled claims cannot be read", got=f"{file.name}: {error}", fix=fix) from None
    if schema != SCHEMA:
        raise EvidenceError(f"the compiled claims must have schema {SCHEMA}", got=repr(schema[:80]), fix=fix)
    if (broken := [line for line in lines if line and "\t" not in line]) or lines[-1:] != [""]:
        raise EvidenceError("the compiled claims are cut off", got=repr(broken[:1] or lines[-1:]), fix=fix)
    entries = dict(line.split("\t", 1) for line in lines if line)
    releases = {key[1:]: _release(entries.pop(key)) for key in [key for key in entries if key.startswith("@")]}
    return releases, entries


def _release(text: str) -> Release:
    body = json.loads(text)
    return Release(**{**body, "models": tuple(body["models"])})


def claim(name: str, text: str) -> Claim:
    """The record of one compiled claim."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}
    source = fields["source"]
    fields["source"] = Source(**{**source, "cites": tuple(source["cites"])})
    fields["not_for"] = tuple(Boundary(**boundary) for boundary in fields.get("not_for", ()))
    if (artifact := fields.get("artifact")) is not None:
        fields["artifact"] = Config(**artifact) if "quantity" in artifact else Code(**artifact)
    return Claim(id=name, **fields)


def main() -> None:
    """Compiles the package's claims."""
    from rollbook.evidence.registry import CLAIMS, read_folder

    registry = read_folder(CLAIMS)
    FILE.write_text(compiled(registry.releases, {key: registry.claim(key) for key in registry.ids}), encoding="utf-8")
    print(f"{len(registry.ids)} claims of {len(registry.releases)} releases")


if __name__ == "__main__":
    main()
