"""A server that speaks OpenEnv's protocol as its package does (openenv 0.10): schema over HTTP, sessions over a WebSocket.

Its environment is a number to be guessed between 1 and 6, given by the seed; three steps are allowed. Written for tests alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import struct
import threading
from collections.abc import Iterator

SCHEMA = {"action": {"type": "object", "title": "Guess", "description": "A guess.", "additionalProperties": False,
                     "properties": {"metadata": {"type": "object"}, "number": {"type": "integer"}, "trick": {"type": "string"}},
                     "required": ["number"]},
          "observation": {"type": "object"}, "state": {"type": "object"}}


class Session:
    """One environment."""

    def __init__(self) -> None:
        self.number, self.steps = 0, 0

    def answer(self, message: dict) -> dict | bytes | None:
        data = message.get("data", {})
        match message.get("type"):
            case "reset":
                self.number, self.steps = int(data.get("seed", 0)) % 6 + 1, 0
                return observation("guess", None, False)
            case "step" if not isinstance(data.get("number"), int):
                return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR",
                                                  "errors": [{"loc": ["number"], "msg": "Field required"}]}}
            case "step" if data.get("trick") == "hang":
                return b""
            case "step" if data.get("trick") == "gone":
                return None
            case "step" if data.get("trick") == "nan":
                return observation("odd", float("nan"), False)
            case "step" if data.get("trick") == "huge":
                return observation("odd", 10**400, False)
            case "step":
                self.steps += 1
                right = data["number"] == self.number
                said = "right" if right else "higher" if data["number"] < self.number else "lower"
                return observation(said, float(right), right or self.steps >= 3)
            case "close":
                return None
            case kind:
                return {"type": "error", "data": {"message": f"Unknown message type: {kind}", "code": "UNKNOWN_TYPE"}}


def observation(said: str, reward: float | int | None, done: bool) -> dict:
    return {"type": "observation", "data": {"observation": {"said": said}, "reward": reward, "done": done}}


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if head[0].startswith("GET /schema"):
            body = json.dumps(SCHEMA).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                         % len(body) + body)
        elif head[0].startswith("GET /ws"):
            key = next(line.partition(": ")[2] for line in head if line.lower().startswith("sec-websocket-key"))
            accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
            writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
            await session(reader, writer)
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
    writer.close()


async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    held = Session()
    while True:
        first, second = await reader.readexactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        mask, data = await reader.readexactly(4), await reader.readexactly(size)
        text = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
        if first & 0x0F == 0xA:                                                     # the answer to a ping
            continue
        if first & 0x0F != 1:
            return
        answer = held.answer(json.loads(text))
        if answer is None:
            return
        if isinstance(answer, bytes):
            continue
        body = json.dumps(answer).encode()
        middle = len(body) // 2
        writer.write(bytes([0x89, 2]) + b"hi")                                      # a ping, then the answer in two frames
        for code, piece in ((0x01, body[:middle]), (0x80, body[middle:])):
            head = bytes([code, len(piece)]) if len(piece) < 126 else bytes([code, 126]) + struct.pack("!H", len(piece))
            writer.write(head + piece)
        await writer.drain()


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Its address while it runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(served, "127.0.0.1", 0), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
