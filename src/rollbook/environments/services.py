"""What the episodes of a process share: one warm sandbox, made when it is first asked for and closed at the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rollbook.records import Asker, Services
from rollbook.records.sandbox import Language, Sandbox, SolutionRunner

if TYPE_CHECKING:
    from rollbook.environments.sandbox import CodeRunner


T = TypeVar("T")


@contextlib.contextmanager
def open_services(*, ask: Asker | None = None) -> Iterator[Services]:
    """Services whose sandbox and runners start with their first use; nothing starts where no environment needs them."""
    with contextlib.ExitStack() as closing:
        lock = threading.RLock()
        held: dict[object, object] = {}

        def once(key: object, make: Callable[[], T], end: Callable[[T], None]) -> T:
            with lock:
                if key not in held:
                    made = make()
                    held[key] = made
                    closing.callback(end, made)
                return held[key]        # type: ignore[return-value]

        def sandbox() -> Sandbox:
            return once("sandbox", _sandbox, lambda made: made.close())

        def runner(languages: tuple[Language, ...]) -> SolutionRunner:
            return once(languages, lambda: _runner(languages), lambda made: made.sandbox.close())

        yield Services(sandbox=sandbox, runner=runner, ask=ask)


def _sandbox() -> Sandbox:
    from rollbook.environments.sandbox import BubblewrapSandbox
    from rollbook.environments.sandbox.packages import shown
    return BubblewrapSandbox(readonly=shown())


def _runner(languages: tuple[Language, ...]) -> CodeRunner:
    from rollbook.environments.sandbox import isolated_runner
    return isolated_runner(languages)
