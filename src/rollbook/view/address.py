"""The permanent address of every view: a page, a run, and what is asked of it; as a server and as a folder write it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlencode

Page = Literal["runs", "overview", "trajectories", "trajectory", "group", "task", "lineage", "evidence", "audit", "record",
               "compare", "grid"]
NAME = "id"         # of the query: names hold slashes and dots, which browsers fold in a path
WITH_NAME = ("trajectory", "group", "task", "record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A view. `name` is what the page is about where it is about one thing, `asked` the filters and other choices.

    Example: Address(page="trajectories", run="demo", asked={"stage": "rl", "page": "2"})
    """

    page: Page
    run: str | None = None
    name: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """As the server answers it."""
        if self.page == "runs":
            path = "/"
        elif self.page in ("compare", "grid"):
            path = f"/{self.page}"
        else:
            path = f"/run/{quote(self.run or '', safe='')}/{self.page}"
        told = dict(self.asked) | ({} if self.name is None else {NAME: self.name})
        return path + (f"?{urlencode(sorted(told.items()), safe=':', errors='surrogatepass')}" if told else "")

    @property
    def file(self) -> str:
        """As a file of a static folder."""
        if self.page == "runs":
            return "index.html"
        parts = [part for part in (self.run, self.page) if part]
        if self.name is not None or self.asked:
            what = f"{self.name}|{urlencode(sorted(self.asked.items()))}"
            parts.append(hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:16])
        return f"{'-'.join(parts)}.html"
