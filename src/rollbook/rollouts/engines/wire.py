"""JSON over HTTP to one server that samples, by the standard library. A key comes from the environment, never on record."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from rollbook.records import FaultCode, ModelError, canonical

KEY_VARIABLE = "VLLM_API_KEY"       # the variable that `vllm serve` reads its own key from
MAX_BYTES = 1 << 30


class Unanswered(Exception):
    """A call that brought no document; `code` is the kind of fault, `status` the HTTP status if there was one, the text what was
    got."""

    def __init__(self, code: FaultCode, got: str, status: int | None = None):
        super().__init__(got)
        self.code: FaultCode = code
        self.status = status


class Wire:
    """Calls to one address, each on a connection of its own. Thread-safe. Raises `Unanswered` and nothing else."""

    def __init__(self, url: str, *, key: str | None = None, max_bytes: int = MAX_BYTES):
        parts = urlsplit(url)
        self._key, self._max_bytes = os.environ.get(KEY_VARIABLE) if key is None else key, max_bytes
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ModelError("a server is an http or https address", got=url, fix="for example http://127.0.0.1:8000")
        self.url, self._base, self._secure = url.rstrip("/"), parts.path.rstrip("/"), parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, seconds: float,
             query: Mapping[str, str] | None = None) -> Any:
        """The document that the server answers to a POST, within `seconds` of silence."""
        return self._call("POST", path + (f"?{urlencode(query)}" if query else ""), canonical(body or {}), seconds)

    def get(self, path: str, *, seconds: float) -> Any:
        """The document behind a path."""
        return self._call("GET", path, None, seconds)

    def _call(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=seconds)
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, self._base + path, body, headers)
            reply = connection.getresponse()
            text = reply.read(self._max_bytes)
        except TimeoutError as error:
            raise Unanswered("timeout", f"no answer to {method} {self.url}{path} within {seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered("unreachable", f"{self.url}{path}: {type(error).__name__} {error}"[:300]) from error
        finally:
            connection.close()
        if reply.status >= 400:
            raise Unanswered("refused", f"{method} {self.url}{path} was answered {reply.status}: "
                             f"{text[:300].decode(errors='replace')}", reply.status)
        if not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unanswered("malformed", f"{method} {self.url}{path} was answered with no JSON: {text[:80]!r}") from error
