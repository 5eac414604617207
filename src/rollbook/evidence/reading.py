"""One laboratory's file as claims: every key known, every label honest, every number with its unit (claims/README.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.evidence.claims import Boundary, Claim, Code, Config, Release, Source
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.labels import artifact, check_label, check_value
from rollbook.evidence.vocabulary import BOUNDS, DOCUMENTS, LABELS, STAGES
from rollbook.evidence.yamltext import Path, parse
from rollbook.records.codec import nearest

SCHEMA = "rollbook.claims/1"
_TOP = ("schema", "laboratory", "name", "releases", "papers", "groups")
_RELEASE = {"name": str, "date": str, "models": list, "note": str}
_SHARED = {"release": str, "model": str, "scope": list, "stage": str, "document": str, "section": str, "cites": list,
           "not_for": dict}
_OWN = {"label": str, "says": str, "quantity": str, "value": object, "bound": str, "unit": str, "denominator": str,
        "assumes": list, "artifact": dict, "check": object, "run": str, "contradicts": list, "supersedes": list,
        "objectives": list, "note": str}
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_QUANTITY = re.compile(r"[a-z][a-z0-9_]*")
_DATE = re.compile(r"20\d\d(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """The content of one file."""

    name: str
    releases: Mapping[str, Release]
    claims: Mapping[str, Claim]


@dataclass(slots=True)
class Reading:
    """Where in which file a problem is, and the problems so far."""

    source: str
    lines: Mapping[Path, int]
    problems: list[EvidenceError]

    def at(self, path: Path) -> str:
        """`file:line` of the path or of its nearest enclosing key."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.source}:{self.lines[path]}" if path else self.source

    def refuse(self, path: Path, what: str, *, got: str | None = None, why: str | None = None, fix: str | None = None) -> None:
        self.problems.append(EvidenceError(f"{self.at(path)}: {what}", got=got, why=why, fix=fix))

    def mapping(self, body: Any, path: Path) -> Mapping[str, Any]:
        if isinstance(body, Mapping):
            return body
        self.refuse(path, f"{_dotted(path)} must be a mapping", got=type(body).__name__)
        return {}

    def fields(self, body: Mapping[str, Any], known: Mapping[str, type], path: Path) -> dict[str, Any]:
        """The entries of `body` that are known and have their type; the others are refused."""
        kept: dict[str, Any] = {}
        for key, value in body.items():
            if key not in known:
                self.refuse((*path, key), f"unknown key {key} in {_dotted(path)}", got=repr(key),
                            fix=f"nearest names: {nearest(key, list(known))}")
            elif not _fits(value, known[key]):
                self.refuse((*path, key), f"{_dotted((*path, key))} must be a {_WORDS[known[key]]}", got=repr(value),
                            fix="quote a text that reads as a number or as nothing")
            else:
                kept[key] = value
        return kept


_WORDS = {str: "text", list: "list of texts", dict: "mapping", object: "value"}


def _fits(value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and bool(value.strip())
    if kind is list:
        return isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)
    return isinstance(value, kind) and value is not None


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


def read(text: str, source: str, problems: list[EvidenceError]) -> Laboratory:
    """The releases and claims of a file's text; what is wrong with it is added to `problems`."""
    parsed = parse(text, source)
    reading = Reading(source=source, lines=parsed.lines, problems=problems)
    stem = source.rpartition("/")[2].removesuffix(".yaml")
    empty = Laboratory(name=stem, releases={}, claims={})
    if not isinstance(parsed.value, Mapping) or parsed.value.get("schema") != SCHEMA:
        got = parsed.value.get("schema") if isinstance(parsed.value, Mapping) else type(parsed.value).__name__
        reading.refuse((), f"a claims file must begin with `schema: {SCHEMA}`", got=repr(got),
                       why="another version may mean other things by the same words")
        return empty
    body = reading.fields(parsed.value, {**dict.fromkeys(_TOP[:3], str), **dict.fromkeys(_TOP[3:], dict)}, ())
    for key in _TOP:
        if key not in body and key != "papers":
            reading.refuse((), f"missing key {key}", fix=f"write `{key}:`")
    if body.get("laboratory") not in (None, stem):
        reading.refuse(("laboratory",), "laboratory must equal the file's name", got=repr(body["laboratory"]),
                       fix=f"write {stem}")
    papers = {key: _paper(key, paper, reading) for key, paper in body.get("papers", {}).items()}
    releases = {key: release for key, item in body.get("releases", {}).items()
                if (release := _release(key, item, stem, reading)) is not None}
    claims = {claim.id: claim for group, item in body.get("groups", {}).items()
              for claim in _group(stem, group, item, papers, reading)}
    return Laboratory(name=stem, releases=releases, claims=claims)


def _paper(key: str, body: Any, reading: Reading) -> str:
    fields = reading.fields(reading.mapping(body, ("papers", key)), {"title": str, "where": str}, ("papers", key))
    if "title" not in fields:
        reading.refuse(("papers", key), f"papers.{key} needs a title")
    return ", ".join(fields[part] for part in ("title", "where") if part in fields)


def _release(key: str, body: Any, laboratory: str, reading: Reading) -> Release | None:
    path = ("releases", key)
    fields = reading.fields(reading.mapping(body, path), _RELEASE, path)
    if not _NAME.fullmatch(key):
        reading.refuse(path, "a release id is lower-case letters, digits, '.', '-' and '_'", got=repr(key))
    if "name" not in fields or not _DATE.fullmatch(fields.get("date", "")):
        reading.refuse(path, f"releases.{key} needs a name and a date", got=repr(fields.get("date")),
                       why="one name may be released again after other training",
                       fix="write `date: 2025-06`, `date: 2025-06-30` or, where no month is known, `date: \"2025\"`")
        return None
    return Release(id=key, laboratory=laboratory, name=fields["name"], date=fields["date"],
                   models=tuple(fields.get("models", ())), note=fields.get("note"))


def _group(laboratory: str, group: str, body: Any, papers: Mapping[str, str], reading: Reading) -> Iterator[Claim]:
    path: Path = ("groups", group)
    if not _NAME.fullmatch(group):
        reading.refuse(path, "a group's name is lower-case letters, digits, '.', '-' and '_'", got=repr(group))
    shared = reading.fields(reading.mapping(body, path), {**_SHARED, "claims": dict}, path)
    claims = shared.pop("claims", {})
    if not claims:
        reading.refuse(path, f"group {group} has no claims")
    for key, item in claims.items():
        where = (*path, "claims", key)
        own = reading.fields(reading.mapping(item, where), {**_SHARED, **_OWN}, where)
        claim = _claim(f"{laboratory}.{group}.{key}", {**shared, **own}, papers, where, reading)
        if claim is not None:
            yield claim


def _claim(name: str, fields: Mapping[str, Any], papers: Mapping[str, str], path: Path, reading: Reading) -> Claim | None:
    before = len(reading.problems)
    missing = [key for key in ("label", "says", "stage", "release", "document", "section") if key not in fields]
    if missing:
        why = ("no claim without its source" if {"document", "section"} & set(missing) else
               "every claim says what it claims, of which release and stage, and how it is known")
        reading.refuse(path, f"{name} has no {', '.join(missing)}", why=why, fix=f"add `{missing[0]}:`")
        return None
    _check_words(name, fields, papers, path, reading)
    if len(reading.problems) > before:
        return None
    refuse = _Refuse(name=name, path=path, reading=reading)
    check_value(fields, refuse)
    check_label(fields, refuse)
    shown = artifact(fields, refuse)
    if len(reading.problems) > before:
        return None
    return _record(name, fields, papers, shown, reading.at(path))


def _record(name: str, fields: Mapping[str, Any], papers: Mapping[str, str], shown: Config | Code | None, at: str) -> Claim:
    value, cites = fields.get("value"), fields.get("cites", ())
    given: dict[str, Any] = {key: fields[key] for key in ("bound", "unit", "denominator", "run", "note") if key in fields}
    given |= {key: tuple(fields[key]) for key in ("assumes", "contradicts", "supersedes", "objectives") if key in fields}
    return Claim(
        id=name, label=fields["label"], stage=fields["stage"], says=fields["says"], release=fields["release"], at=at,
        quantity=fields.get("quantity", name.rpartition(".")[2]), model=fields.get("model"), artifact=shown,
        scope=tuple(fields.get("scope", (fields["release"],))), value=tuple(value) if isinstance(value, list) else value,
        source=Source(document=fields["document"], section=fields["section"], cites=tuple(papers[key] for key in cites)),
        not_for=tuple(Boundary(release=key, reason=reason) for key, reason in fields.get("not_for", {}).items()), **given)


def _check_words(name: str, fields: Mapping[str, Any], papers: Mapping[str, str], path: Path, reading: Reading) -> None:
    for key, known in (("label", LABELS), ("stage", STAGES), ("bound", BOUNDS), ("document", DOCUMENTS)):
        if key in fields and fields[key] not in known:
            reading.refuse((*path, key), f"{name} has an unknown {key}", got=repr(fields[key]), fix=f"one of: {', '.join(known)}")
    if not _QUANTITY.fullmatch(str(path[-1])) or not _QUANTITY.fullmatch(fields.get("quantity", "x")):
        reading.refuse(path, f"{name}: a quantity is lower-case letters, digits and '_'",
                       got=repr(fields.get("quantity", path[-1])))
    document = DOCUMENTS.get(fields["document"])
    if document and not document.section.fullmatch(fields["section"]):
        reading.refuse((*path, "section"), f"{name}: {fields['document']} has no such section", got=repr(fields["section"]),
                       fix=f"write {document.form}")
    for key in fields.get("cites", ()):
        if key not in papers:
            reading.refuse((*path, "cites"), f"{name} cites a paper that the file does not list", got=repr(key),
                           fix=f"nearest names: {nearest(key, list(papers))}")
    for release, reason in fields.get("not_for", {}).items():
        if not isinstance(reason, str) or not reason.strip():
            reading.refuse((*path, "not_for"), f"{name}: not_for.{release} needs a reason", got=repr(reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refuse:
    """Refuses a field of one claim by name."""

    name: str
    path: Path
    reading: Reading

    def __call__(self, key: str, what: str, **parts: str) -> None:
        self.reading.refuse((*self.path, key), f"{self.name} {what}", **parts)
