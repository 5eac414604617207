"""The client's half of RFC 6455 over asyncio, as far as text messages need it: no extension, no compression."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import struct
from dataclasses import dataclass
from urllib.parse import urlsplit

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"      # RFC 6455, section 1.3
CONTINUED, TEXT, CLOSE, PING, PONG = 0x0, 0x1, 0x8, 0x9, 0xA
HEAD_BYTES = 64 * 1024


class Broken(OSError):
    """A connection that could not be made, or that ended or spoke otherwise than the protocol does."""


@dataclass(slots=True)
class WebSocket:
    """One open connection; messages of more than `largest` bytes are refused."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    largest: int

    @classmethod
    async def connect(cls, address: str, *, largest: int) -> WebSocket:
        """Opens ws:// or wss:// (http and https mean the same)."""
        parts = urlsplit(address)
        secure = parts.scheme in ("wss", "https")
        if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
            raise Broken(f"not an address of a socket: {address[:200]}")
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None, limit=HEAD_BYTES)
        key = base64.b64encode(os.urandom(16))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.hostname}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     f"Sec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        made = cls(reader, writer, largest)
        try:
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            await made.gone()
            raise Broken(f"no answer to the opening: {type(error).__name__}") from error
        names = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        wanted = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
        if " 101 " not in f"{head[0]} " or names.get("sec-websocket-accept") != wanted:
            await made.gone()
            raise Broken(f"the server does not speak WebSocket there: {head[0][:80]}")
        return made

    async def send(self, text: str) -> None:
        """Sends one text message."""
        await self._frame(TEXT, text.encode())

    async def receive(self) -> str:
        """The next text message; pings are answered. Broken where the connection ends or another kind of message comes."""
        whole, kind = b"", CONTINUED
        while True:
            last, code, data = await self._read()
            if code == PING:
                await self._frame(PONG, data)
            elif code == CLOSE:
                raise Broken(f"the server closed the connection: {data[2:].decode(errors='replace')[:200] or 'no reason given'}")
            elif code in (TEXT, CONTINUED) and (code == CONTINUED) == (kind == TEXT):
                kind, whole = TEXT, whole + data
                if len(whole) > self.largest:
                    raise Broken(f"a message of more than {self.largest} bytes")
                if last:
                    try:
                        return whole.decode("utf-8")
                    except UnicodeDecodeError as error:
                        raise Broken("a message that is no text") from error
            elif code != PONG:
                raise Broken(f"a frame of kind {code} where a text was due")

    async def close(self) -> None:
        """Says goodbye and lets go; never raises."""
        with contextlib.suppress(OSError, Broken):
            await self._frame(CLOSE, struct.pack("!H", 1000))
        await self.gone()

    async def gone(self) -> None:
        """Lets go of the connection without a word."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _frame(self, code: int, data: bytes) -> None:
        mask, size = os.urandom(4), len(data)
        length = (bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack("!H", size) if size < 1 << 16 else
                  bytes([0x80 | 127]) + struct.pack("!Q", size))
        hidden = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")).to_bytes(size, "big")
        self.writer.write(bytes([0x80 | code]) + length + mask + hidden)
        await self.writer.drain()

    async def _read(self) -> tuple[bool, int, bytes]:
        try:
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
            if second & 0x80 or first & 0x70:
                raise Broken("a frame that a server may not send")
            if size > self.largest:
                raise Broken(f"a message of more than {self.largest} bytes")
            return bool(first & 0x80), first & 0x0F, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Broken("the connection ended") from error
