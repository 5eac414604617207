"""Generators as actors of a Ray cluster: weights through its object store, environments on whichever node an actor is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor

from rollbook.orchestration.runtimes.fleet import Told
from rollbook.orchestration.runtimes.host import Host, HostSpec
from rollbook.records import AttemptId, Dispatch, Task

LOOK_S = 0.02       # how long an idle actor sleeps before it is asked again


class Actors:
    """Builds actors of this description on the cluster that RAY_ADDRESS names, or on one of this machine."""

    name = "ray actor"

    def __init__(self, spec: HostSpec):
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._spec = ray.put(spec)

    def share(self, weights: Mapping[str, Tensor], version: int) -> object:
        """The weights in the object store: copied once to every node that reads them."""
        return [ray.put({name: value.cpu().contiguous().numpy() for name, value in weights.items()})]   # in a list: not resolved

    def build(self, say: Callable[[Told], None], die: Callable[[str], None]) -> ActorRemote:
        return ActorRemote(self._spec, say, die)


class ActorRemote:
    """An actor; a thread here asks it again and again to go on, and notices when it is gone."""

    def __init__(self, spec: Any, say: Callable[[Told], None], die: Callable[[str], None]):
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(_Actor).remote(spec)
        self._closed = threading.Event()
        threading.Thread(target=self._listen, args=(say, die), daemon=True, name="rollbook-listener").start()

    def load(self, weights: object, version: int) -> None:
        self._actor.load.remote(weights, version)

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        self._actor.start.remote(dispatch, task, tuple(attempts))

    def cancel(self, scope: str) -> None:
        self._actor.cancel.remote(scope)

    def close(self) -> None:
        self._closed.set()
        ray.kill(self._actor)

    def _listen(self, say: Callable[[Told], None], die: Callable[[str], None]) -> None:
        try:
            while not self._closed.is_set():
                for told in ray.get(self._actor.go_on.remote()):
                    say(told)
        except RayError as error:
            if not self._closed.is_set():
                die(f"{type(error).__name__}: {error}"[:300])


class _Actor:
    """A generator inside an actor: calls come one after the other, in the order they were made."""

    def __init__(self, spec: HostSpec):
        self._host = Host(spec)
        self._said: list[Told] = []

    def load(self, weights: list[Any], version: int) -> None:
        import torch

        held = {name: torch.from_numpy(value.copy()) for name, value in ray.get(weights[0]).items()}
        self._said.append(Told(loaded=(version, self._host.load(held, version))))

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        self._host.start(dispatch, task, attempts)

    def cancel(self, scope: str) -> None:
        self._said.append(Told(ended=tuple(self._host.cancel(scope))))

    def go_on(self) -> list[Told]:
        """A moment of sampling; what there is to say since the last call."""
        import time

        if self._host.busy:
            if ended := self._host.advance():
                self._said.append(Told(ended=tuple(ended)))
        elif not self._said:
            time.sleep(LOOK_S)
        said, self._said = self._said, []
        return said
