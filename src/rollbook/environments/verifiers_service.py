"""A taskset of the `verifiers` library (0.4) behind JSON lines: its tasks, its tools, its rewards, for `verifiers_tasks`.

Run by a Python in which `verifiers` and the taskset are installed, which need not hold Rollbook:
`python verifiers_service.py '{"id": "my-taskset", ...}'`. A line asks `{"n", "op", ...}`, a line answers `{"n", "found"}` or
`{"n", "refused"}` (it cannot be so) or `{"n", "failed"}` (the library or the taskset raised). It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import json
import os
import sys
import threading
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

AHEAD_S = 400 * 86400       # how far a proof turns the clock
ENDED = "this taskset cannot be an environment here"


class Refused(Exception):
    """What was asked cannot be had of this taskset."""


class Serving:
    """One taskset, and the open sessions of those of its tasks that have tools."""

    def __init__(self, config: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import taskset_class

        self.vf, self.kind = vf, taskset_class(config["id"])
        self.taskset = self.kind(vf.taskset_config_type(config["id"])(**config))
        self.tasks: dict[int, Any] = {}
        self.rows = iter(self.taskset)
        self.sessions: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        self.opened = itertools.count()

    def task(self, place: int) -> Any:
        """The task at this place of the taskset's stream."""
        while place not in self.tasks:
            found = next(self.rows, None)
            if found is None:
                raise Refused(f"the taskset has {len(self.tasks)} tasks, none at {place}")
            self.tasks[len(self.tasks)] = found
        return self.tasks[place]

    async def hello(self, **asked: Any) -> dict[str, Any]:
        """What the taskset's tasks and verdicts come from: digests of its source, versions of all that is installed."""
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class

        kind = environment_class(self.taskset.config.id)
        if kind is not SingleAgentEnv:
            raise Refused(f"{ENDED}: {kind.__name__} runs a loop of its own")
        module = inspect.getfile(self.kind)
        files = sorted(Path(module).parent.rglob("*.py")) if Path(module).name == "__init__.py" else [Path(module)]
        source = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
        installed = sorted({f"{one.metadata['Name']}=={one.version}" for one in distributions()})
        return {"source": source, "verifiers": self.vf.__version__ if hasattr(self.vf, "__version__") else _version(),
                "python": sys.version.split()[0], "installed": hashlib.sha256("\n".join(installed).encode()).hexdigest()}

    async def rows_of(self, count: int, **asked: Any) -> list[dict[str, Any]]:
        """The first `count` tasks: their messages, key and data. Refused for what their verdict would need and not have."""
        found = []
        for place in range(count):
            try:
                task = self.task(place)
            except Refused:
                break
            self._usable(task)
            found.append({"key": task.key, "messages": _prompt(task.data), "name": task.data.name,
                          "data": task.data.model_dump(mode="json", exclude_none=True)})
        return found

    def _usable(self, task: Any) -> None:
        base = self.vf.Task
        needs = [name for name in ("setup", "finalize", "stage_verifier") if getattr(type(task), name) is not getattr(base, name)]
        for fn in (*task.hooks("reward"), *task.hooks("metric"), *(one.score for one in task.plugged_judges())):
            wanted = inspect.signature(fn).parameters.get("runtime")
            needs += [fn.__name__] if wanted is not None and wanted.default is inspect.Parameter.empty else []
        if task.NEEDS_CONTAINER or task.data.image:
            needs.append("a container")
        if needs:
            raise Refused(f"{ENDED}: {', '.join(needs)} of {type(task).__name__} needs a runtime to work in")
        if not (task.hooks("reward") or task.plugged_judges()):
            raise Refused(f"{ENDED}: {type(task).__name__} has no reward and no judge")

    async def open(self, place: int, **asked: Any) -> dict[str, Any]:
        """A session at a task: its tools by name. One without tools costs nothing and is not kept."""
        from mcp.server.mcpserver import MCPServer
        from verifiers.v1.state import state_cls

        task = self.task(place)
        toolsets = [*task.toolsets(task.config), *self.kind.toolsets(self.taskset.config)]
        state, routes, shown = state_cls(type(task))(), {}, []
        for toolset in toolsets:
            toolset._pull_state, toolset._push_state = _given(state), _nothing
            await toolset.setup()
            await toolset.setup_task(task.data)
            server = MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(server)
            for tool in await server.list_tools():
                name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                routes[name] = (server, tool.name)
                schema = getattr(tool, "inputSchema", None) or getattr(tool, "input_schema", None) or {"type": "object"}
                shown.append({"name": name, "description": tool.description or "", "parameters": schema})
        number = next(self.opened)
        if routes:
            self.sessions[number] = task, state, routes
        return {"session": number, "tools": shown, "state": _kept(state)}

    async def call(self, session: int, name: str, arguments: dict[str, Any], **asked: Any) -> dict[str, Any]:
        """What a tool answers; what it raises is its answer."""
        if session not in self.sessions:
            raise Refused("there is no such session")
        _, state, routes = self.sessions[session]
        server, own = routes[name]
        try:
            answer = await server.call_tool(own, arguments)
        except Exception as error:
            return {"text": f"error: {error}"[:2000], "failed": True, "state": _kept(state)}
        blocks = getattr(answer, "content", answer[0] if isinstance(answer, tuple) else answer)
        failed = bool(getattr(answer, "isError", None) or getattr(answer, "is_error", False))
        return {"text": "\n".join(getattr(one, "text", f"[{one.type}]") for one in blocks), "failed": failed,
                "state": _kept(state)}

    async def close(self, session: int, **asked: Any) -> dict[str, Any]:
        self.sessions.pop(session, None)
        return {}

    async def score(self, place: int, key: str, turns: list[dict[str, Any]], state: dict[str, Any] | None,
                    **asked: Any) -> dict[str, Any]:
        """The task's own rewards, with their weights, of a conversation; `unscored` names those that gave none."""
        from verifiers.v1.state import state_cls
        from verifiers.v1.trace import AgentInfo, MessageNode, Trace, TraceTask

        task = self.task(place)
        if task.key != key:
            raise Refused("the taskset has another task at this place now")
        kind = state_cls(type(task))
        trace = Trace(task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
                      agent=AgentInfo(config=self.vf.AgentConfig()), state=kind.model_validate(state) if state else kind())
        for number, turn in enumerate([*_prompt(task.data), *turns]):
            trace.nodes.append(MessageNode(parent=number - 1 if number else None, message=_message(self.vf, turn),
                                           sampled=turn["role"] == "assistant" and number >= len(_prompt(task.data))))
        trace.is_completed = trace.ok = True
        await task.score(trace, None)
        return {"reward": trace.reward, "unscored": sorted(name for name, one in trace.rewards.items() if one is None),
                "parts": {name: one.score for name, one in trace.rewards.items() if one is not None},
                "errors": [f"{one.type}: {one.message}" for one in trace.errors]}


def _version() -> str:
    import verifiers
    return str(verifiers.__version__)


def _given(state: Any) -> Any:
    async def pull() -> Any:
        return state
    return pull


async def _nothing(before: bytes) -> None:
    pass


def _kept(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = state.model_dump(mode="json")
    return found


def _prompt(data: Any) -> list[dict[str, str]]:
    """A task's messages as texts."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if data.prompt is None:
        raise Refused(f"{ENDED}: a task without a prompt waits for a user to begin")
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return system + [{"role": one.role, "content": _text(one.content)} for one in data.prompt]


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if any(part.type != "text" for part in content):
        raise Refused(f"{ENDED}: a prompt holds what is no text")
    return "".join(part.text for part in content)


def _message(vf: Any, turn: dict[str, Any]) -> Any:
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage, "tool": vf.ToolMessage}
    given = {key: value for key, value in turn.items() if key != "role"}
    return kinds[turn["role"]](**given)


async def answered(serving: Serving, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to one line."""
    work = {"hello": serving.hello, "rows": serving.rows_of, "open": serving.open, "call": serving.call, "close": serving.close,
            "score": serving.score}[asked["op"]]
    try:
        return {"n": asked["n"], "found": await work(**asked)}      # type: ignore[operator]
    except Refused as error:
        return {"n": asked["n"], "refused": str(error)[:1000]}
    except Exception as error:
        return {"n": asked["n"], "failed": f"{type(error).__name__}: {error}"[:1000]}


def turn_the_clock() -> None:
    """Where a proof plays under another clock, this process has it too."""
    if os.environ.get("ROLLBOOK_CONDITION") == "clock":
        try:
            import time_machine
        except ModuleNotFoundError:
            raise Refused("a proof plays under another clock: pip install time-machine beside verifiers") from None
        time_machine.travel(time.time() + AHEAD_S, tick=True).start()


def main() -> None:
    """Serves until standard input ends; what the taskset prints goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    loop = asyncio.new_event_loop()
    try:
        turn_the_clock()
        serving: Serving | None = Serving(json.loads(sys.argv[1]))
        wrong = ""
    except Exception as error:
        serving, wrong = None, f"{type(error).__name__}: {error}"[:1000]

    async def answer(asked: dict[str, Any]) -> None:
        found = {"n": asked["n"], "refused": wrong} if serving is None else await answered(serving, asked)
        out.write(json.dumps(found).encode() + b"\n")
        out.flush()

    def read() -> None:
        for line in sys.stdin.buffer:
            asyncio.run_coroutine_threadsafe(answer(json.loads(line)), loop)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    loop.run_forever()


if __name__ == "__main__":
    main()
