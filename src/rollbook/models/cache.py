"""Keys and values of rows that are being decoded, position by position, in memory that is laid out once.

Legend: B rows, K key/value heads, M cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.models.architecture import Architecture

CPU = torch.device("cpu")
ROOM = 32          # positions by which a cache's rows are widened: products over a row's whole width need no copy of it


@dataclass(slots=True, kw_only=True)
class Cache:
    """Keys and values of B rows, [layers, B, K, M, D] each, and the length of each row in positions.

    A sparse model's also holds the experts that each position took, as int16 [layers, B, 1, M, experts per token].

    `length_B` is in the processor's memory, the rest where the weights are.

    Position p of a row stands at place p - `start`; in a cache that decoding has filled to its capacity, at p modulo M, where
    only the last M positions are left: enough for an architecture whose window is no longer.
    """

    key: Tensor
    value: Tensor
    length_B: Tensor
    start: int = 0
    route: Tensor | None = None

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Everything that is held position by position."""
        return (self.key, self.value) if self.route is None else (self.key, self.value, self.route)

    def _made_of(self, made: Callable[[Tensor], Tensor]) -> None:
        """Replaces everything that is held."""
        self.key, self.value = made(self.key), made(self.value)
        self.route = None if self.route is None else made(self.route)

    @classmethod
    def empty(cls, a: Architecture, rows: int, capacity: int, dtype: torch.dtype, device: torch.device = CPU) -> Cache:
        """Room for `rows` rows of `capacity` positions."""
        shape = (a.layers, rows, a.kv_heads, capacity, a.head_dim)
        dtype = torch.int32 if a.keeps_tokens else dtype
        experts = (a.layers, rows, 1, capacity, a.experts_per_token)
        route = torch.zeros(experts, dtype=torch.int16, device=device) if a.experts else None
        return cls(key=torch.zeros(shape, dtype=dtype, device=device), value=torch.zeros(shape, dtype=dtype, device=device),
                   route=route, length_B=torch.zeros(rows, dtype=torch.long))

    def reach(self, positions: int) -> None:
        """Sees to it that every row is at least `positions` wide, and `ROOM` at a time, inside the memory it was made with.

        A row that is no wider than what it holds lies densely, which is what products over many rows need; what is held moves.
        """
        _, rows, heads, width, dim = self.key.shape
        wider = min(-(-positions // ROOM) * ROOM, self.key.stride(0) // (rows * heads * dim))
        if positions > width and wider > width:
            self._made_of(lambda x: _widened(x, wider))

    def narrow(self, positions: int) -> None:
        """Makes the rows of an empty cache `positions` wide, rounded up to `ROOM`; `reach` widens them again."""
        width = min(self.key.shape[3], max(ROOM, -(-positions // ROOM) * ROOM))
        self._made_of(lambda x: _strided(x, width))

    def first(self, rows: int) -> Cache:
        """A view of the first rows; what is appended to it is appended here."""
        return Cache(key=self.key[:, :rows], value=self.value[:, :rows], length_B=self.length_B[:rows],
                     route=None if self.route is None else self.route[:, :rows])

    def put(self, at: int, other: Cache, rows: Tensor) -> None:
        """Copies some of another cache's rows to here, from row `at` on."""
        length_B = other.length_B[rows]
        self.reach(int(length_B.max()))
        room = self.key.shape[3]
        for place, (row, length) in enumerate(zip(rows.tolist(), length_B.tolist(), strict=True), start=at):
            first = max(other.start, length - room)
            held = slice(first - other.start, length - other.start)
            for mine, theirs in zip(self.held, other.held, strict=True):
                if length <= room:
                    mine[:, place, :, first:length] = theirs[:, row, :, held]
                else:
                    mine[:, place, :, torch.arange(first, length) % room] = theirs[:, row, :, held]
        self.length_B[at:at + len(rows)] = length_B

    def row(self, row: int) -> Cache:
        """A copy of one row: what is held of it, in order."""
        length, room = int(self.length_B[row]), self.key.shape[3]
        first = max(self.start, length - room)
        place = (torch.arange(first, length) - self.start) % room
        return Cache(key=self.key[:, row:row + 1, :, place], value=self.value[:, row:row + 1, :, place],
                     length_B=self.length_B[row:row + 1].clone(), start=first,
                     route=None if self.route is None else self.route[:, row:row + 1, :, place])

    def experts(self, row: int) -> Tensor | None:
        """The experts of every position of a row, [positions, layers, experts per token]; None where they are not all held."""
        length = int(self.length_B[row])
        if self.route is None or self.start or length > self.key.shape[3]:
            return None
        return self.route[:, row, 0, :length].transpose(0, 1)

    def move(self, source: int, target: int) -> None:
        """Copies one row over another."""
        used = min(int(self.length_B[source]), self.key.shape[3])
        for held in self.held:
            held[:, target, :, :used] = held[:, source, :, :used]
        self.length_B[target] = self.length_B[source]


def _strided(x: Tensor, width: int) -> Tensor:
    """The rows of an empty cache, `width` positions wide, in the same memory."""
    layers, rows, heads, _, dim = x.shape       # strided: a view of a single layer would forget how much room its memory has
    return x.as_strided((layers, rows, heads, width, dim), (x.stride(0), heads * width * dim, width * dim, dim, 1))


def _widened(x: Tensor, width: int) -> Tensor:
    """The same rows, `width` positions wide, in the same memory, layer by layer."""
    layers, rows, heads, held, dim = x.shape
    wider = x.as_strided((layers, rows, heads, width, dim), (x.stride(0), heads * width * dim, width * dim, dim, 1))
    for index in range(layers):
        wider[index, :, :, :held] = x[index].clone()
    return wider
