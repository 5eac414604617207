"""Runs to be looked at: a whole one, and one whose every text is hostile."""

import dataclasses

import inspected_run
from inspected_run import Writer, begin, whole_run
from starlette.testclient import TestClient

from rollbook.records import RunEnd, Scored
from rollbook.view.app import Door, application
from rollbook.view.shown import held_runs

HOSTILE = ('<script>window.attacked=1</script><img src=x onerror="window.attacked=1">\x1b[2J\x1b]0;owned\x07‮gnitser‬ '
           '{{ 7*7 }} "\'><svg/onload=window.attacked=1> \x00\x08 ' + "é̀́̂̃" * 40 + "A" * 1_000_000)


class HostileWriter(Writer):
    """Every response, detail and group is hostile."""

    def traces(self, issued):
        return [dataclasses.replace(trace, text=HOSTILE, group="../../<b>g</b>?x=1&y=#%00/" + trace.group)
                for trace in super().traces(issued)]

    def outcomes(self, traces):
        return [dataclasses.replace(one, detail=HOSTILE[:300]) for one in super().outcomes(traces)]


def hostile_run(folder):
    real = inspected_run.scored
    made = begin(folder)
    writer = HostileWriter(made.ledger, made.train, made.heldout, made.version)

    def scored(of):
        verdict = real(of)
        parts = tuple(dataclasses.replace(part, detail=HOSTILE[:500]) for part in verdict.vector.components)
        return Scored(trace=verdict.trace, vector=dataclasses.replace(verdict.vector, components=parts))

    inspected_run.scored = scored
    try:
        writer.evaluate("start_eval")
        writer.step(1)
    finally:
        inspected_run.scored = real
    writer.ledger.append(RunEnd(status="diverged", detail=HOSTILE[:400]))
    writer.ledger.close()
    return writer


def client(*folders, token=None, hosts=None):
    return TestClient(application(held_runs(list(folders)), Door(token=token, hosts=hosts)), raise_server_exceptions=False,
                      follow_redirects=False)


__all__ = ["HOSTILE", "begin", "client", "hostile_run", "whole_run"]
