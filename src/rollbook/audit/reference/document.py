"""A settings document read strictly: unknown kind, unknown key, missing key and wrong value are refused. No defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollbook.audit.reference.step import RecomputeError
from rollbook.records.codec import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Checked settings; `kind` names the objective or term."""

    kind: str
    values: Mapping[str, object]

    def number(self, name: str, *, least: float | None = 0.0) -> float:
        """A number, at least `least`."""
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (least is not None and not value >= least):
            raise RecomputeError(f"{self.kind}.{name} must be a number" + ("" if least is None else f" >= {least:g}"),
                                 got=repr(value), why="the formula computes with it", fix="look at how the batch was written")
        return float(value)

    def optional(self, name: str) -> float | None:
        """A number >= 0, or None where the setting says that it is not used."""
        return None if self.values[name] is None else self.number(name)

    def positive(self, name: str) -> float:
        """A number above 0: it divides."""
        value = self.number(name)
        if value == 0:
            raise RecomputeError(f"{self.kind}.{name} must be above 0", got="0", why="the formula divides by it",
                                 fix="look at how the batch was written")
        return value

    def unused(self, *names: str) -> None:
        """Refuse a value for a setting that the chosen rule does not read."""
        for name in names:
            if self.values[name] is not None:
                raise RecomputeError(f"{self.kind}.{name} is not read by the chosen rule", got=repr(self.values[name]),
                                     why="an ignored bound would make the name untrue", fix="look at how the batch was written")

    def choice(self, name: str, *allowed: str) -> str:
        value = self.values[name]
        if not isinstance(value, str) or value not in allowed:
            raise RecomputeError(f"{self.kind}.{name} must be one of {', '.join(allowed)}", got=repr(value),
                                 why="each is another formula", fix=f"nearest: {nearest(str(value), list(allowed))}")
        return value


def kind_of(settings: Mapping[str, object], known: Iterable[str], what: str) -> str:
    """The document's `kind`, one of `known`."""
    kind, names = settings.get("kind"), list(known)
    if not isinstance(kind, str) or kind not in names:
        raise RecomputeError(f"the reference knows no {what} of this kind", got=repr(kind),
                             why="its formula is not written here, so its loss cannot be recomputed",
                             fix=f"nearest: {nearest(str(kind), names)}")
    return kind


def read(settings: Mapping[str, object], kind: str, *, needs: Iterable[str], may: Iterable[str]) -> Document:
    """The document of `kind`: every key of `needs` present, and no key outside `needs` and `may`."""
    needed, allowed = list(needs), [*needs, *may]
    for key in settings:
        if key != "kind" and key not in allowed:
            raise RecomputeError(f"{kind} has no setting {key}", got=f"{key} = {settings[key]!r}",
                                 why="an ignored setting would make the name untrue", fix=f"nearest: {nearest(key, allowed)}")
    missing = [key for key in needed if key not in settings]
    if missing:
        raise RecomputeError(f"{kind} needs {', '.join(missing)}", got="nothing",
                             why="the reference holds no numbers of its own", fix="store the whole settings with the batch")
    return Document(kind=kind, values=settings)
