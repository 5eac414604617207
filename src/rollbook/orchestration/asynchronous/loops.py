"""The loops of an asynchronous stage on threads: one generator, one verifier; the learner is the caller's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from rollbook.orchestration.asynchronous.board import Board
from rollbook.orchestration.asynchronous.flow import Flow
from rollbook.records import AttemptId, Dispatch, Judge, Task, TaskId, Trace

ENDING_S = 60.0      # how long a closing stage waits for its loops; what they hold is cancelled and takes a moment


class Attempts(Protocol):
    """Attempts being made somewhere: in this process, in another, on another machine."""

    @property
    def busy(self) -> bool:
        """Whether an attempt is under way."""

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        """Begins these attempts at the task of a dispatch that holds one."""

    def advance(self) -> list[tuple[str, Trace]]:
        """Goes on for a moment; what ended meanwhile, each with the scope of its dispatch."""

    def cancel(self, scope: str) -> list[tuple[str, Trace]]:
        """Ends every attempt of the dispatch now; those that were under way, as cancelled."""

    def close(self) -> None:
        """Gives back what it holds; a second time does nothing."""


def generate(flow: Flow, attempts: Attempts, board: Board) -> None:
    """consumes: room under the throttle · produces: ended attempts · waits for: the throttle or room among the finished groups ·
    unblocked by: a publication, a decision of the learner, a verifier that takes a group
    """
    while True:
        for order in flow.withdrawals():
            _deliver(flow, attempts.cancel(order.scope))
        orders = flow.orders()
        for order in orders:
            attempts.start(order.dispatch, order.task, order.attempts)
        if attempts.busy:
            ended = attempts.advance()
            _deliver(flow, ended)
            board.working("generator")
            if ended or orders:
                board.moved("generator")
        elif flow.over:
            return
        else:
            board.waits("generator", flow.why_none())
            flow.wait()


def _deliver(flow: Flow, ended: Sequence[tuple[str, Trace]]) -> None:
    for scope, trace in ended:
        flow.ended(scope, trace)


def verify(flow: Flow, judge: Judge, tasks: Mapping[TaskId, Task], board: Board) -> None:
    """consumes: finished groups · produces: judged groups · waits for: a finished group · unblocked by: a generator, the end"""
    while (group := flow.next_finished()) is not None:
        board.working("verifier")
        flow.judged(group, judge.judge(group.traces, tasks))


@contextmanager
def running(flow: Flow, attempts: Attempts, judge: Judge, tasks: Mapping[TaskId, Task]) -> Iterator[None]:
    """Both loops on threads of their own. They end with the block: what runs then is cancelled and judged, and can be taken."""
    board = flow.board
    threads = [_thread("generator", board, lambda: _no_grad(lambda: generate(flow, attempts, board))),
               _thread("verifier", board, lambda: verify(flow, judge, tasks, board))]
    try:
        yield
    finally:
        flow.close()
        for thread in threads:
            thread.join(ENDING_S)
        attempts.close()


def _no_grad(work: Callable[[], None]) -> None:
    with torch.no_grad():
        work()


def _thread(name: str, board: Board, work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:      # a loop that dies is the learner's error: it raises it at its next look
            board.failed(error)
    thread = threading.Thread(target=run, name=f"rollbook-{name}", daemon=True)
    thread.start()
    return thread
