"""What a turn of the policy leads to: calls are read and checked, the environment is asked, what it does is an observation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rollbook.environments import as_text
from rollbook.records import (
    Action,
    Environment,
    EnvironmentFault,
    EpisodeBudget,
    Misfit,
    Observation,
    Reply,
    ReplyError,
    RollbookError,
    ToolCall,
    ToolSchema,
)
from rollbook.records.environment import EnvironmentFaultCode
from rollbook.rollouts.arguments import misfit, only_text
from rollbook.rollouts.dialects import Made, Malformed, Spoken
from rollbook.rollouts.tokens import Decode, token_span

T = TypeVar("T")
SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A turn as the environment will see it, and what it will not see. `order` are the ids of all calls as they were written."""

    action: Action
    misfits: tuple[Misfit, ...]
    order: tuple[str, ...]


def read_turn(spoken: Spoken, tools: Sequence[ToolSchema], *, turn: int, ids: Sequence[int], decode: Decode) -> Read:
    """Checks every call of a turn against the tools; `ids` are the turn's tokens."""
    by_name = {tool.name: tool for tool in tools}
    calls, misfits, order = [], [], []
    for place, one in enumerate(spoken.calls):
        name = f"call_{turn}_{place}"
        order.append(name)
        checked = _checked(one, by_name, name)
        if isinstance(checked, ToolCall):
            calls.append(checked)
        else:
            start, length = token_span(decode, ids, one.start, one.end)
            misfits.append(Misfit(id=name, error=checked[0], detail=checked[1][:SHOWN], start=start, length=length))
    return Read(action=Action(text=spoken.text, calls=tuple(calls)), misfits=tuple(misfits), order=tuple(order))


def _checked(one: Made | Malformed, tools: dict[str, ToolSchema], name: str) -> ToolCall | tuple[ReplyError, str]:
    if isinstance(one, Malformed):
        return "malformed_call", f"this is no call that can be read: {one.why}"
    tool = tools.get(one.name)
    if tool is None:
        return "unknown_tool", f"there is no tool {one.name[:80]!r}; there are {', '.join(tools) or 'none'}"
    arguments = one.arguments
    if isinstance(arguments, str):
        key = only_text(tool)
        if key is None:
            return "bad_arguments", f"{tool.name} does not take one text"
        arguments = {key: arguments}
    wrong = misfit(arguments, tool.parameters)
    return ToolCall(id=name, name=tool.name, arguments=arguments) if wrong is None else ("bad_arguments", wrong)


async def guarded(code: EnvironmentFaultCode, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """What the environment returns; EnvironmentFault for everything else that it does."""
    try:
        return await within(seconds, work())
    except EnvironmentFault:
        raise
    except TimeoutError as error:
        raise EnvironmentFault(f"the environment's {code} took too long", code="timeout",
                               got=f"more than {seconds:g} s") from error
    except RollbookError as error:
        raise EnvironmentFault(error.what, code=code, got=error.got, why=error.why, fix=error.fix) from error
    except Exception as error:
        raise EnvironmentFault(f"the environment's {code} failed", code=code,
                               got=f"{type(error).__name__}: {error}"[:SHOWN]) from error


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What the work gives within the time; TimeoutError after it, also where the work does not let itself be cancelled."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        task.add_done_callback(_forget)
        raise TimeoutError
    return task.result()


def _forget(task: asyncio.Future[T]) -> None:
    """Takes notice of how an abandoned task ended, so that nothing complains about it."""
    if not task.cancelled():
        task.exception()


async def answer(environment: Environment, read: Read, budget: EpisodeBudget, others: dict[str, Reply]) -> Observation:
    """The observation of a turn: one reply for each call in the order written; `others` were answered elsewhere.

    A tool that crashes or hangs is an observation; only `EnvironmentFault` ends the episode.
    """
    known = dict(others)
    for one in read.misfits:
        known[one.id] = Reply(owner="tool", content=f"error: {one.detail}", call=one.id, error=one.error)
    action = passed_on(read, others)
    if action is None:
        return Observation(replies=tuple(known[name] for name in read.order))
    seen = await _acted(environment, action, budget.call_seconds)
    known |= {reply.call: reply for reply in seen.replies if reply.call is not None}
    missing = [call.id for call in action.calls if call.id not in known and seen.ended is None]
    known |= {name: Reply(owner="tool", content="error: the tool gave no answer", call=name, error="crash") for name in missing}
    replies = [known[name] for name in read.order if name in known]
    replies += [reply for reply in seen.replies if reply.call is None or reply.call not in read.order]
    return Observation(replies=tuple(_text(reply, budget.reply_characters) for reply in replies), ended=seen.ended)


def passed_on(read: Read, others: Collection[str]) -> Action | None:
    """The action without the calls that are answered elsewhere; None where nothing of it is left for the environment."""
    calls = tuple(call for call in read.action.calls if call.id not in others)
    return None if not calls and read.order else replace(read.action, calls=calls)


async def _acted(environment: Environment, action: Action, seconds: float) -> Observation:
    try:
        seen = await within(seconds, environment.act(action))
    except EnvironmentFault:
        raise
    except TimeoutError:
        return _failed(action, "timeout", f"error: no answer within {seconds:g} s")
    except RollbookError as error:
        return _failed(action, "crash", f"error: {error.what}"[:SHOWN])
    except Exception as error:
        return _failed(action, "crash", f"error: {type(error).__name__}"[:SHOWN])
    if not isinstance(seen, Observation):
        return _failed(action, "crash", "error: the tool gave no observation")
    return seen


def _failed(action: Action, error: ReplyError, content: str) -> Observation:
    if not action.calls:
        return Observation(replies=(Reply(owner="environment", content=content, error=error),))
    return Observation(replies=tuple(Reply(owner="tool", content=content, call=call.id, error=error) for call in action.calls))


def _text(reply: Reply, limit: int) -> Reply:
    """The reply with a content that is text and not longer than the budget allows; a foreign type was a crash of the tool."""
    content: object = reply.content
    if not isinstance(content, (str, bytes)):
        return replace(reply, content=f"error: the tool gave {type(content).__name__} instead of text", error="crash")
    text, error = as_text(content, limit)
    return reply if text == content and error is None else replace(reply, content=text, error=reply.error or error)


def first_observation(seen: Observation, budget: EpisodeBudget) -> Observation:
    """What `reset` showed, with contents that are text."""
    return replace(seen, replies=tuple(_text(reply, budget.reply_characters) for reply in seen.replies))
