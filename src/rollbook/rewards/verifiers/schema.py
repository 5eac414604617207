"""JSON answers: one document, and one that a JSON schema accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from rollbook.rewards.verifiers.base import BadReference, Unavailable, VerifierSpec, verdict
from rollbook.rewards.verifiers.extraction import answer_in

MAX_TEXT = 1_000_000
MAX_NESTING = 100


class NoDocument(Exception):
    """The text is no JSON document as RFC 8259 has it, or one whose meaning is not settled: a name twice, NaN."""


def json_schema(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The answer is one JSON document that the schema accepts. References outside the schema are not followed."""
    validator = _validator(reference, settings["formats"])
    found = document_in(response, settings["extract"])
    if isinstance(found, str):
        return verdict(False, found)
    try:
        error = next(iter(validator.iter_errors(found[0])), None)
    except Exception as problem:        # the schema refers to what is not there; the answer cannot cause it
        raise BadReference(f"{type(problem).__name__}: {problem}"[:200]) from None
    if error is None:
        return verdict(True, "valid")
    return verdict(False, f"at {'/'.join(map(str, error.absolute_path)) or 'the root'}: {error.message}"[:200])


def document_in(response: str, extract: str) -> list[Any] | str:
    """The document of a response in a list of one, or why there is none. A response without a fenced block is the document."""
    text = answer_in(response, extract)
    if text is None and extract.startswith("fenced"):
        text = answer_in(response, "whole")
    if not text:
        return "no document"
    if len(text) > MAX_TEXT:
        return f"a document of {len(text)} characters"
    try:
        return [parsed(text)]
    except NoDocument as error:
        return str(error)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises NoDocument."""
    level = deepest = 0
    quoted = escaped = False
    for character in text:
        if quoted:
            escaped, quoted = character == "\\" and not escaped, character != '"' or escaped
            continue
        quoted = character == '"'
        level += (character in "[{") - (character in "]}")
        deepest = max(deepest, level)
    if deepest > MAX_NESTING:
        raise NoDocument(f"nested {deepest} deep")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NoDocument(f"no JSON: {error}"[:200]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _validator(schema: Any, formats: bool) -> Any:
    try:
        import jsonschema
    except ImportError:
        raise Unavailable("jsonschema is not installed: pip install 'rollbook[verifiers]'") from None
    try:
        if isinstance(schema, str):
            schema = parsed(schema)
        if not isinstance(schema, dict | bool):
            raise BadReference(f"a schema is an object or true or false, got {type(schema).__name__}")
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (NoDocument, jsonschema.SchemaError) as error:
        raise BadReference(f"no schema: {getattr(error, 'message', error)}"[:200]) from None
    return kind(schema, format_checker=kind.FORMAT_CHECKER if formats else None)


def warm() -> None:
    """The slow import, before anything is timed."""
    try:
        _validator({"type": "integer"}, False)
    except Unavailable:
        pass


JSON_SCHEMA = VerifierSpec(name="json_schema", version="1", work=f"{__name__}:json_schema", packages=("jsonschema",),
                           sources=("boxes.py", "verifiers/extraction.py", "verifiers/schema.py"),
                           settings={"extract": "fenced", "formats": False})
