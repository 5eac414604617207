"""Verifiers that keep no contract: fakes for the tests of the check."""

import itertools

CALLS = itertools.count()


def always(response, reference, settings):
    return {"passed": True, "score": 1.0, "detail": ""}


def never(response, reference, settings):
    return {"passed": False, "score": 0.0, "detail": ""}


def raising(response, reference, settings):
    raise RuntimeError("no idea")


def flickering(response, reference, settings):
    return next(CALLS) % 2 == 0


def nonsense(response, reference, settings):
    return {"passed": "yes"}


def beyond(response, reference, settings):
    return {"passed": True, "score": 7.0}


def picky(response, reference, settings):
    if "bad" in response:
        raise ValueError("a bad response")
    return response == reference
