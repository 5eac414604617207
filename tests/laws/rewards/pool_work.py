"""Work for a verifier pool that does what no verifier should: a fake for the tests of the limits."""

import ctypes
import os
import re


def echo(value):
    """The argument itself."""
    return value


def hog(megabytes):
    """Takes memory until there is no more."""
    kept = [bytearray(1024**2) for _ in range(megabytes)]
    return len(kept)


def spin(exponent):
    """Keeps the interpreter lock in C code: exponential backtracking."""
    return re.fullmatch("(a+)+b", "a" * exponent) is not None


def fail(message):
    raise ValueError(message)


def refuse(code):
    """Fails with a code of its own."""
    error = LookupError("nothing to compare with")
    error.code = code
    raise error


class Mute(Exception):
    def __str__(self):
        raise ZeroDivisionError


def mute(argument):
    """Fails with an exception that cannot say what it is."""
    raise Mute


def crash():
    """Reads address zero."""
    ctypes.string_at(0)


def leave():
    os._exit(0)


def unspeakable():
    """Returns what JSON cannot hold."""
    return object()


def own_verifier(response, reference, settings):
    """A user's verifying function: right where the response ends with the reference; raises on a response that asks for it."""
    if response == "raise":
        raise ZeroDivisionError("as asked")
    return {"passed": response.endswith(reference), "score": settings.get("score", 0.5), "detail": "own"}
