"""Refusals shared by the settings records and the functions of this package."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from rollbook.objectives.errors import ObjectiveError


def check_number(who: str, name: str, value: object) -> None:
    """Refuse what is no number: text, a flag, nothing, a whole number beyond every float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, int) and value.bit_length() > 1000):
        got = "a whole number of more than 300 digits" if type(value) is int else repr(value)
        raise ObjectiveError(f"{who}.{name} must be a number", got=got, why="it is computed with", fix=f"pass {name} as a float")


def check_bounds(who: str, **bounds: float) -> None:
    """Refuse a negative bound: the interval is 1-low .. 1+high."""
    for name, value in bounds.items():
        check_number(who, name, value)
        if not value >= 0:
            raise ObjectiveError(
                f"{who}.{name} must be >= 0",
                got=repr(value),
                why="bounds are distances from 1: the ratio interval is 1-low .. 1+high",
                fix=f"pass the distance, e.g. {name}=0.2 for a bound 0.2 away from 1",
            )


def check_not_negative(who: str, **values: float) -> None:
    """Refuse a negative or infinite coefficient."""
    check_limit(who, **values)
    _check_finite(who, **values)


def check_limit(who: str, **values: float) -> None:
    """Refuse a negative threshold; infinity is no limit at all."""
    for name, value in values.items():
        check_number(who, name, value)
        if not value >= 0:
            raise ObjectiveError(
                f"{who}.{name} must be >= 0", got=repr(value), why="a negative one turns its sense around", fix=f"set {name} >= 0"
            )


def _check_finite(who: str, **values: float) -> None:
    for name, value in values.items():
        if value == float("inf"):
            raise ObjectiveError(
                f"{who}.{name} must be finite", got=repr(value), why="infinity times 0 is NaN", fix=f"set a finite {name}"
            )


def check_share(who: str, **values: float) -> None:
    """Refuse a discount, lambda or probability outside 0 .. 1."""
    for name, value in values.items():
        check_number(who, name, value)
        if not 0 <= value <= 1:
            raise ObjectiveError(
                f"{who}.{name} must lie in 0 .. 1",
                got=repr(value),
                why="it is a share of what follows",
                fix=f"set 0 <= {name} <= 1",
            )


def check_std(who: str, eps: float, ddof: int) -> None:
    """Refuse what cannot be added to, or taken off the count of, a standard deviation."""
    check_ddof(who, ddof)
    check_number(who, "eps", eps)
    if not 0 <= eps < float("inf"):
        raise ObjectiveError(f"{who}.eps must be >= 0", got=repr(eps), why="it is added to a std", fix="set eps >= 0 and finite")


def check_ddof(who: str, ddof: object) -> None:
    """Refuse a divisor other than n and n - 1."""
    if isinstance(ddof, bool) or not isinstance(ddof, int) or ddof not in (0, 1):
        raise ObjectiveError(
            f"{who}.ddof must be 0 or 1",
            got=repr(ddof),
            why="squares are divided by n - ddof; the sources are silent or disagree, so the choice is yours",
            fix="set ddof = 0 or ddof = 1, as a number",
        )


def check_positive(who: str, **values: float) -> None:
    """Refuse a scale that is 0, negative or infinite."""
    check_cap(who, **values)
    _check_finite(who, **values)


def check_cap(who: str, **values: float) -> None:
    """Refuse an upper bound that is 0 or negative; infinity is no bound at all."""
    for name, value in values.items():
        check_number(who, name, value)
        if not value > 0:
            raise ObjectiveError(f"{who}.{name} must be > 0", got=repr(value), why="it scales or divides", fix=f"set {name} > 0")


def check_choice(who: str, name: str, value: object, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ObjectiveError(
            f"{who}.{name} must be one of {', '.join(allowed)}",
            got=repr(value),
            why="the sources are silent or disagree, so the choice is yours and has a name",
            fix=f"set {name} to one of these",
        )


def check_at_least(who: str, least: float, **values: float) -> None:
    for name, value in values.items():
        check_number(who, name, value)
        if not value >= least:
            raise ObjectiveError(
                f"{who}.{name} must be >= {least:g}",
                got=repr(value),
                why="its interval would be empty",
                fix=f"set {name} >= {least:g}",
            )


def check_at_most(who: str, most: float, **values: float) -> None:
    for name, value in values.items():
        check_number(who, name, value)
        if not value <= most:
            raise ObjectiveError(
                f"{who}.{name} must be <= {most:g}", got=repr(value), why="above, its sum diverges", fix=f"set {name} <= {most:g}"
            )


def check_coefficient(who: str, value: object) -> None:
    """Refuse a term's coefficient that is no finite number; a negative one turns a penalty into a bonus."""
    check_number(who, "coefficient", value)
    assert isinstance(value, int | float)
    if not isfinite(value):
        raise ObjectiveError(f"{who}.coefficient must be finite", got=repr(value), why="it scales a loss", fix="set a number")


def check_tensor(who: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ObjectiveError(
            f"{who}: {name} must be a tensor",
            got=type(value).__name__,
            why="it is packed with others",
            fix=f"torch.tensor({name})",
        )
    if value.layout != torch.strided:
        raise ObjectiveError(
            f"{who}: {name} must be a dense tensor",
            got=str(value.layout).removeprefix("torch."),
            why="entries are compared and indexed; what a sparse tensor leaves out is no entry",
            fix=f"pass {name}.to_dense()",
        )


def check_float(who: str, **tensors: Tensor) -> None:
    """Refuse whole numbers and flags where fractions are computed."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
        if not value.is_floating_point():
            raise ObjectiveError(
                f"{who}: {name} must be a float tensor",
                got=str(value.dtype),
                why="whole numbers would cut its fractions",
                fix=f"convert it with {name}.double()",
            )


def check_real(who: str, **tensors: Tensor) -> None:
    """Refuse complex numbers where an order or a size counts; whole numbers and flags may stand for floats."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
        if value.is_complex():
            raise ObjectiveError(
                f"{who}: {name} must be real",
                got=str(value.dtype).removeprefix("torch."),
                why="complex numbers have no order",
                fix=f"pass {name}.real",
            )


def check_ids(who: str, **tensors: Tensor) -> None:
    """Refuse ids, hashes and counts that are no whole numbers."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            raise ObjectiveError(
                f"{who}: {name} must be integers",
                got=str(value.dtype),
                why="it counts or identifies: floats that differ by rounding, or flags, would name other things",
                fix=f"pass {name} as int64",
            )


def check_no_infinity(who: str, **tensors: Tensor) -> None:
    """Refuse an infinite entry. NaN stays NaN, on its own entry; an infinity times 0 becomes one, often in the gradient only."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
        bad = value.isinf()
        if bool(bad.any()):
            raise ObjectiveError(
                f"{who} needs a finite {name}",
                got=f"{value[bad].tolist()[0]} at position {', '.join(map(str, bad.nonzero().tolist()[0]))}",
                why="an infinity times 0 is NaN, often in the gradient only; engines report -inf for tokens outside their top-k",
                fix="score the sampled tokens over the support they were sampled from, or leave their sequence out",
            )


def check_same_shape(who: str, **tensors: Tensor) -> None:
    """Refuse tensors that would broadcast."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
    if len({value.shape for value in tensors.values()}) > 1:
        raise ObjectiveError(
            f"{who}: {', '.join(tensors)} must have one shape",
            got=", ".join(str(tuple(value.shape)) for value in tensors.values()),
            why="they describe the same entries; a shorter one would be repeated silently",
            fix="build them from the same packing",
        )


def check_same_floats(who: str, **tensors: Tensor) -> None:
    """Refuse float tensors that would broadcast, and what is no float tensor."""
    check_same_shape(who, **tensors)
    check_float(who, **tensors)


def check_vector(who: str, **tensors: Tensor) -> None:
    """Refuse what is no vector."""
    for name, value in tensors.items():
        check_tensor(who, name, value)
        if value.dim() != 1:
            raise ObjectiveError(
                f"{who}: {name} must be a vector",
                got=f"shape {tuple(value.shape)}",
                why="it has one entry per sequence",
                fix="lay the sequences end to end",
            )


def check_reaches(who: str, name: str, value_S: Tensor, size: int) -> None:
    """Refuse a per-sequence vector that does not reach the largest sequence id, `size` - 1."""
    check_tensor(who, name, value_S)
    if value_S.dim() != 1 or value_S.shape[0] < size:
        raise ObjectiveError(
            f"{who}: {name} must have one entry per sequence",
            got=f"shape {tuple(value_S.shape)} for {size} sequences",
            why="a shorter one would be repeated or leave sequences without theirs",
            fix=f"pass {name} for every sequence",
        )


def check_flags(who: str, name: str, value: object, like: Tensor) -> None:
    """Refuse what is not one boolean per entry of `like`."""
    check_tensor(who, name, value)
    assert isinstance(value, Tensor)
    if value.dtype != torch.bool or value.shape != like.shape:
        raise ObjectiveError(
            f"{who}: {name} must be one boolean per entry",
            got=f"{value.dtype} of shape {tuple(value.shape)} for shape {tuple(like.shape)}",
            why="it says which entries count; numbers would index, or turn into others when negated",
            fix="pass a boolean vector",
        )


def check_scored(who: str, name: str, value: Tensor, keep: Tensor | None = None) -> None:
    """Refuse a kept reward that is not finite: what was not scored is dropped, not averaged."""
    bad = ~value.isfinite() if keep is None else ~value.isfinite() & keep
    if bool(bad.any()):
        place = bad.nonzero().tolist()[0]
        raise ObjectiveError(
            f"{who}: {name} must be finite",
            got=f"{value[bad].tolist()[0]} at position {', '.join(map(str, place))}",
            why="one NaN reaches every advantage of its group or batch; an absent score is not a number",
            fix="leave out what was not scored, or drop it with keep_S",
        )


def check_squares(who: str, name: str, value: Tensor, keep: Tensor | None = None) -> None:
    """Refuse kept numbers whose squared deviations do not fit their precision: the std would be infinite, the advantage 0."""
    held = value if keep is None else value[keep]
    most = float(held.detach().abs().max()) if held.numel() else 0.0
    limit = (torch.finfo(value.dtype).max / 4 / max(held.numel(), 1)) ** 0.5
    if most > limit:
        raise ObjectiveError(
            f"{who}: {name} must be small enough to be squared in {str(value.dtype).removeprefix('torch.')}",
            got=f"{most:g} where at most {limit:g} fits",
            why="its squared deviations overflow: the std would be infinite and every advantage 0",
            fix="scale the rewards, or pass a wider float",
        )


def check_record(who: str, name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Refuse what is no such record."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise ObjectiveError(
            f"{who}: {name} must be {' or '.join(one.__name__ for one in kinds)}",
            got=repr(value) if isinstance(value, type) else type(value).__name__,
            why="its fields are read",
            fix=f"build one and pass it as {name}",
        )


def check_index(who: str, name: str, index: Tensor, size: int) -> None:
    """Refuse an index beyond what it points into."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise ObjectiveError(
            f"{who}: {name} must lie in 0 .. {size - 1}",
            got=f"{int(index.min())} .. {int(index.max())}",
            why="it says which entry of another column each entry belongs to",
            fix="number them from 0, in the order of that column",
        )


def check_sequence_ids(seq_T: Tensor) -> None:
    """Refuse sequence ids that index no vector of sequences."""
    check_tensor("packing", "seq_T", seq_T)
    if seq_T.dim() != 1 or seq_T.dtype not in (torch.int64, torch.int32):
        raise ObjectiveError(
            "seq_T must be an integer vector",
            got=f"{seq_T.dtype} of shape {tuple(seq_T.shape)}",
            why="it holds ids",
            fix="use int64",
        )
    if bool((seq_T < 0).any()):
        raise ObjectiveError("seq_T must be >= 0", got=str(int(seq_T.min())), why="it indexes sequences", fix="number from 0")


def check_packed(seq_T: Tensor) -> None:
    """Refuse sequence ids that are negative or whose tokens do not stand together."""
    check_sequence_ids(seq_T)
    if seq_T.numel() == 0:
        return
    runs, ids = 1 + (seq_T[1:] != seq_T[:-1]).sum(), (torch.bincount(seq_T) > 0).sum()
    if bool(runs != ids):
        raise ObjectiveError(
            "seq_T must be contiguous per sequence",
            got=f"{runs.tolist()} runs of {ids.tolist()} ids",
            why="the next action token is the next one in the vector",
            fix="pack one sequence after the other",
        )
