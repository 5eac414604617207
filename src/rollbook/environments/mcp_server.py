"""Any MCP server as an environment, through the official SDK, over stdio or HTTP: its tools are the tools, an answer ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.environments.describing import image_of
from rollbook.environments.texts import Posed, stated
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    RecordError,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolCall,
    ToolSchema,
    Ungraded,
    canonical,
    digest,
    encode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Questions of a JSON file, `[{"question", "answer", "calls": [{"name", "arguments"}]}]`, and a server to answer them with.

    `command` starts a server of the episode's own, speaking over its standard streams; else `url` names one that runs, over
    streamable HTTP. `calls` are a solution's. A server starts with nothing of this process's variables but `variables` and PATH.
    Limit: what a shared server at `url` remembers of other episodes is its own affair; only a server of one's own resets.
    """

    questions: str
    command: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    starting_s: float = 20.0
    call_s: float = 20.0

    def image(self) -> EnvironmentImage:
        own = {"questions": digest(Path(self.questions).read_bytes())}
        programs = [Path(part) for part in self.command if Path(part).is_file() and Path(part).stat().st_size < 2**20]
        own |= {f"program/{file.name}": digest(file.read_bytes()) for file in programs}
        own |= {"tools": digest(canonical([encode(tool) for tool in offered(self)]))}
        return image_of(self, packages=("mcp",), network="loopback" if self.url else "none", extra=own)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """The first `count` questions of the file, each permitting the server's tools."""
        posed, tools = [], tuple(tool.name for tool in offered(self))
        for place, row in enumerate(self._rows()[:count]):
            posed.append(Posed(
                family="mcp", messages=(Message(role="user", content=str(row["question"]), origin="raw"),),
                reference=str(row["answer"]), unit=f"question:{digest(str(row['question']).encode())[:24]}",
                start=json.dumps({"row": place}), source=Path(self.questions).name, licence="unstated",
                lineage={"row": str(place)}, tools=tools).records())
        return TaskSet(raw=tuple(raw for raw, _ in posed), tasks=tuple(task for _, task in posed))

    def build(self, *, services: Services, seed: int) -> McpEpisode:
        return McpEpisode(definition=self)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        if not task.reference:
            return Ungraded(code="no_reference", detail="the question has no answer on file")
        answer = state.facts["answer"]
        return Grade(accuracy=float(answer == task.reference), detail=f"{answer!r} for {task.reference!r}"[:200],
                     parts={"calls": float(state.facts["calls"])})

    def solutions(self, task: Task) -> Solutions:
        row = self._rows()[json.loads(task.initial_state)["row"]]
        calls = tuple(ToolCall(id=f"call_0_{place}", name=call["name"], arguments=call["arguments"])
                      for place, call in enumerate(row.get("calls", ())))
        begin = (Action(calls=calls),) if calls else ()
        return Solutions(gold=((*begin, Action(text=str(row["answer"]))),), wrong=((*begin, Action(text="I do not know")),))

    def _rows(self) -> list[dict[str, Any]]:
        try:
            rows = json.loads(Path(self.questions).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EnvironmentFault("the questions cannot be read", code="build", got=str(error)[:200]) from error
        if not isinstance(rows, list) or not all(isinstance(row, dict) and {"question", "answer"} <= set(row) for row in rows):
            raise EnvironmentFault("the questions are a list of question and answer", code="build", got=self.questions)
        return rows


@dataclass(slots=True, kw_only=True)
class McpEpisode:
    """One connection, held by a task of its own: the SDK's connections must end in the task that began them."""

    definition: McpServer
    offered: tuple[ToolSchema, ...] = ()
    calls: int = 0
    said: str | None = None
    _asked: asyncio.Queue[tuple[ToolCall | None, asyncio.Future[Reply]]] = field(default_factory=asyncio.Queue)
    _holding: asyncio.Task[None] | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self.offered

    async def reset(self, task: Task) -> Observation:
        await self.begin()
        return Observation()

    async def begin(self) -> None:
        """Starts or reaches the server; EnvironmentFault where it lists no tools in time."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(ready))
        done, _ = await asyncio.wait({ready, self._holding}, timeout=self.definition.starting_s,
                                     return_when=asyncio.FIRST_COMPLETED)
        if ready not in done:
            raise EnvironmentFault("the MCP server did not start", code="reset",
                                   got=" ".join(self.definition.command) or self.definition.url,
                                   why="it gave no list of tools" if not done else repr(self._holding.exception())[:200],
                                   fix="run its command by hand")

    async def act(self, action: Action) -> Observation:
        if not action.calls:
            self.said = action.text
            return Observation(ended="answered")
        self.calls += len(action.calls)
        return Observation(replies=tuple([await self._ask(call) for call in action.calls]))

    def state(self) -> FinalState:
        return FinalState(facts={"answer": None if self.said is None else stated(self.said), "calls": self.calls})

    async def close(self) -> None:
        if self._holding is None:
            return
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((None, future))
        await asyncio.wait({self._holding}, timeout=5.0)
        if not self._holding.done():
            self._holding.cancel()
            await asyncio.wait({self._holding}, timeout=5.0)
        if not self._holding.cancelled():
            self._holding.exception()

    async def _ask(self, call: ToolCall) -> Reply:
        assert self._holding is not None
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((call, future))
        await asyncio.wait({future, self._holding}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            return Reply(owner="tool", content="error: the server is gone", call=call.id, error="unavailable")
        return future.result()

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        """Opens the connection, answers what is asked, and closes it."""
        async with contextlib.AsyncExitStack() as stack:
            session = await _session(self.definition, stack)
            self.offered = tuple(_schema(tool) for tool in (await session.list_tools()).tools)
            ready.set_result(None)
            while True:
                call, future = await self._asked.get()
                if call is None:
                    return
                reply = await self._called(session, call)
                if not future.done():
                    future.set_result(reply)

    async def _called(self, session: Any, call: ToolCall) -> Reply:
        limit = self.definition.call_s
        try:
            found = await asyncio.wait_for(session.call_tool(call.name, dict(call.arguments)), limit)
        except TimeoutError:
            return Reply(owner="tool", content=f"error: no answer within {limit:g} s", call=call.id, error="timeout")
        except Exception as error:
            return Reply(owner="tool", content=f"error: {error}"[:400], call=call.id, error="unavailable")
        texts = [getattr(part, "text", f"[{part.type}]") for part in found.content]
        failed = getattr(found, "isError", None) or getattr(found, "is_error", False)
        return Reply(owner="tool", content="\n".join(texts), call=call.id, error="refused" if failed else None)


def offered(definition: McpServer) -> tuple[ToolSchema, ...]:
    """The tools that the server offers when it is asked first; EnvironmentFault where it cannot be."""
    return _offered(definition.command, definition.url, tuple(sorted(definition.variables.items())), definition.starting_s)


@lru_cache(maxsize=16)
def _offered(command: tuple[str, ...], url: str, variables: tuple[tuple[str, str], ...],
             seconds: float) -> tuple[ToolSchema, ...]:
    definition = McpServer(questions="", command=command, url=url, variables=dict(variables), starting_s=seconds)

    async def asked() -> tuple[ToolSchema, ...]:
        episode = McpEpisode(definition=definition)
        try:
            await episode.begin()
            return episode.offered
        finally:
            await episode.close()
    with ThreadPoolExecutor(1) as pool:         # a loop of its own, also where this one has one that runs
        return pool.submit(asyncio.run, asked()).result()


async def _session(definition: McpServer, stack: contextlib.AsyncExitStack) -> Any:
    """An initialised session of the SDK."""
    try:
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client
    except ModuleNotFoundError as error:
        raise EnvironmentFault("the mcp package is not installed", code="missing_tool",
                               fix="pip install 'rollbook[mcp]'") from error
    if bool(definition.command) == bool(definition.url):
        raise EnvironmentFault("an MCP server is either a command or a url", code="build",
                               got="both" if definition.command else "neither")
    if definition.command:
        parameters = StdioServerParameters(command=definition.command[0], args=list(definition.command[1:]),
                                           env=dict(definition.variables))
        streams = await stack.enter_async_context(stdio_client(parameters))
    else:
        streams = await stack.enter_async_context(streamable_http_client(definition.url))
    session = await stack.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
    await session.initialize()
    return session


def _schema(tool: Any) -> ToolSchema:
    parameters = getattr(tool, "inputSchema", None) or getattr(tool, "input_schema", None) or {"type": "object"}
    try:
        return ToolSchema(name=tool.name, description=tool.description or "", parameters=parameters)
    except RecordError as error:
        raise EnvironmentFault(f"the server's tool {tool.name!r} cannot be offered", code="reset", got=error.what) from error
