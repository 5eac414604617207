"""Judges with one dependency too many; each is named by its class, so that the proof re-scores with the same one."""

from __future__ import annotations

import dataclasses
import os
import socket
import time

from rollbook.records import Scored
from rollbook.rewards import MagistralJudge

SPOKEN = "judged leniently"
SALT = os.urandom(8).hex()


def lenient(verdicts, yes):
    """The verdicts, with a remark on each first component where the judge is lenient."""
    if not yes:
        return verdicts
    return [remarked(verdict, SPOKEN) for verdict in verdicts]


def remarked(verdict, text):
    if not isinstance(verdict, Scored):
        return verdict
    first, *rest = verdict.vector.components
    parts = (dataclasses.replace(first, detail=text), *rest)
    return dataclasses.replace(verdict, vector=dataclasses.replace(verdict.vector, components=parts))


class ClockJudge(MagistralJudge):
    """Is lenient from the year after next on."""

    def judge(self, traces, tasks):
        return lenient(super().judge(traces, tasks), time.gmtime().tm_year * 366 + time.gmtime().tm_yday > DEADLINE)


DEADLINE = time.gmtime().tm_year * 366 + time.gmtime().tm_yday + 300


class NetworkJudge(MagistralJudge):
    """Looks a host up, and is lenient when it cannot."""

    def judge(self, traces, tasks):
        try:
            socket.getaddrinfo("127.0.0.1", 80)
            alone = False
        except OSError:
            alone = True
        return lenient(super().judge(traces, tasks), alone)


class IndexJudge(MagistralJudge):
    """Is lenient where packages come from another index."""

    def judge(self, traces, tasks):
        return lenient(super().judge(traces, tasks), "PIP_INDEX_URL" in os.environ)


class SaltedJudge(MagistralJudge):
    """Signs every verdict with a salt of its process."""

    def judge(self, traces, tasks):
        return [remarked(verdict, SALT) for verdict in super().judge(traces, tasks)]


class TiredJudge(MagistralJudge):
    """Grows lenient with the number of texts it has seen."""

    seen = 0

    def judge(self, traces, tasks):
        verdicts = []
        for verdict in super().judge(traces, tasks):
            self.seen += 1
            verdicts += lenient([verdict], self.seen > 30)
        return verdicts


class GenerousJudge(MagistralJudge):
    """Another judge under another digest."""

    def __init__(self, settings):
        super().__init__(dataclasses.replace(settings, verify_seconds=settings.verify_seconds + 1))
