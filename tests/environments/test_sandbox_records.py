"""Requests that cannot be meant are refused, and what a program printed can be shown to a person."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.environments.sandbox import TEST
from rollbook.records import RecordError
from rollbook.records.sandbox import SOURCE_NAME, Captured, Program, SandboxStamp, Solution


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TEST)])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_positive(field: str, value: float) -> None:
    with pytest.raises(RecordError, match=f"limits.{field} must be positive"):
        dataclasses.replace(TEST, **{field: value})


@pytest.mark.parametrize("fields", [{}, {"source": b"", "argv": ("true",)}])
def test_a_program_is_a_source_or_an_argv(fields) -> None:
    with pytest.raises(RecordError, match="either a Python source or an argv"):
        Program(limits=TEST, **fields)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_a_file_of_a_program_stays_in_its_folder(name: str) -> None:
    with pytest.raises(RecordError, match="outside its working directory"):
        Program(argv=("true",), files={name: b""}, limits=TEST)


@pytest.mark.parametrize(("fields", "message"), [
    ({"argv": ("a\0b",)}, "holds a NUL"),
    ({"argv": ("a",), "environment": {"A": "b\0"}}, "holds a NUL"),
    ({"argv": ("a",), "environment": {"A=B": "c"}}, "no usable name"),
    ({"argv": ("a",), "environment": {"": "c"}}, "no usable name"),
    ({"source": b"1", "files": {SOURCE_NAME: b"2"}}, "the name of the source and of a file"),
    ({"source": bytes(40 << 20), "files": {"data": bytes(40 << 20)}}, "do not fit its limit of disk"),
])
def test_a_request_that_cannot_be_meant_is_refused(fields, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Program(limits=TEST, **fields)


def test_a_sandbox_is_weak_exactly_where_it_leaves_something_unenforced() -> None:
    for strength, unenforced in (("weak", ()), ("isolated", ("network",))):
        with pytest.raises(RecordError, match="weak exactly where"):
            SandboxStamp(name="x", strength=strength, digest="d", unenforced=unenforced)


@pytest.mark.parametrize("fields", [{"language": "cpp", "function": "solve"}, {"language": "python", "function": "os.system()"},
                                    {"language": "python", "function": ""}])
def test_a_function_is_a_python_name(fields) -> None:
    with pytest.raises(RecordError):
        Solution(source="", **fields)


@given(st.binary(max_size=600))
def test_what_is_shown_to_a_person_moves_no_cursor(data: bytes) -> None:
    shown = Captured(data=data).shown()
    assert all(mark == "\n" or mark.isprintable() for mark in shown)
    assert len(shown) <= 403


def test_terminal_sequences_are_written_out() -> None:
    assert Captured(data=b"0\r\x1b[2K7\xff\x07").shown() == "0\\r\\x1b[2K7\\xff\\x07"
    assert Captured(data="a\u202eb".encode()).shown() == "a\\u202eb"
    assert Captured(data=b"x" * 500).shown() == "x" * 400 + "..."
    assert Captured(data=b"cut", truncated=True).shown() == "cut..."


def test_bytes_that_are_no_text_have_none() -> None:
    assert Captured(data=b"\xff").text() is None
    assert Captured(data="ü".encode()).text() == "ü"
