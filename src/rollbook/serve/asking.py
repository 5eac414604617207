"""An OpenAI chat request as typed data; what is not understood is refused, as everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.records import Action, Message, RecordError, RollbookError, ToolSchema
from rollbook.records.codec import nearest
from rollbook.rollouts.described import Unreadable, read_calls, read_tools

HARMLESS = ("user", "metadata", "store", "stream_options", "service_tier", "prompt_cache_key", "safety_identifier")
# neither these nor a chat's parallel_tool_calls and reasoning_effort say anything about what is sampled here
NUMBERS: Mapping[str, tuple[Any, float, float]] = {"temperature": ((int, float), 0.0, 100.0),
                                                    "top_p": ((int, float), 1e-6, 1.0), "seed": ((int,), 0, 2**63 - 1)}
ZERO = ("frequency_penalty", "presence_penalty")
KNOWN = ("model", "temperature", "top_p", "max_tokens", "stop", "seed", "n", "stream", "logprobs", *ZERO, *HARMLESS)
CHAT = ("messages", "tools", "tool_choice", "max_completion_tokens", "top_logprobs", "response_format", "parallel_tool_calls",
        "reasoning_effort")        # of a chat alone

MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name")
UNREAD = ("refusal", "reasoning_content", "reasoning", "thinking_blocks", "annotations", "provider_specific_fields")   # sent back


class Refused(RollbookError):
    """A request that is not answered; `status` is its HTTP status."""

    def __init__(self, what: str, *, status: int = 400, got: str | None = None, why: str | None = None, fix: str | None = None):
        super().__init__(what, got=got, why=why, fix=fix)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation: what was said, and by the assistant also what was called.

    Example: Turn(role="assistant", action=Action(text="", calls=(ToolCall(...),)))
    """

    role: str
    content: str = ""
    action: Action | None = None
    call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request. None stands for what the server's own settings decide."""

    model: str
    turns: tuple[Turn, ...]
    tools: tuple[ToolSchema, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    logprobs: bool = False


def chat(body: Any) -> Asked:
    """A chat request; Refused with what is wrong."""
    document = _checked(body, "messages", CHAT)
    messages = document["messages"]
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list of at least one message", got=type(messages).__name__)
    choice = document.get("tool_choice", "auto")
    if choice not in ("auto", "none", None):
        raise Refused("tool_choice must be auto or none", got=json.dumps(choice)[:80], why="the policy decides whether it calls")
    try:
        tools = read_tools(document.get("tools"))
    except (Unreadable, RecordError) as error:
        raise Refused(f"tools cannot be read: {error}".split("\n")[0],
                      fix="send them as OpenAI's chat interface has them") from error
    tools = tools if choice != "none" else ()
    return _asked(document, tuple(_turn(message, place) for place, message in enumerate(messages)), tools)


def completion(body: Any) -> tuple[str, Asked]:
    """A plain completion: the prompt's text, and the rest of the request."""
    document = _checked(body, "prompt", ("prompt",))
    prompt, logs = document["prompt"], document.get("logprobs")
    if not isinstance(prompt, str):
        raise Refused("prompt must be one text", got=type(prompt).__name__)
    if logs is not None and (isinstance(logs, bool) or logs != 0):
        raise Refused("logprobs of a plain completion must be 0", got=repr(logs)[:60],
                      why="it is how many more than the sampled token are named, and only sampled tokens' log-probs are kept")
    return prompt, _asked({**document, "logprobs": logs == 0}, (), ())


def _checked(body: Any, needed: str, own: Sequence[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused("the request must be a JSON object", got=type(body).__name__)
    known = (*KNOWN, *own)
    for key in body:
        if key not in known and (body[key] is not None or key not in (*CHAT, "prompt")):
            what = f"{key} belongs to a chat, not to a plain completion" if key in CHAT else f"unknown key {key}"
            raise Refused(what, got=repr(body[key])[:60], why="what is ignored cannot be relied on",
                          fix="send it to /v1/chat/completions" if key in CHAT else
                          f"nearest names: {nearest(str(key), list(known))}")
    if needed not in body:
        raise Refused(f"missing key {needed}")
    for key in ZERO:
        if body.get(key):
            raise Refused(f"{key} must be 0", got=str(body[key]), why="the recorded log-probs would not be the policy's")
    if body.get("n") not in (None, 1):
        raise Refused("n must be 1", got=str(body["n"]), fix="send a request for each")
    wanted = body.get("response_format")
    if wanted is not None and (not isinstance(wanted, dict) or wanted.get("type", "text") != "text"):
        raise Refused("response_format must be text", got=str(body["response_format"])[:60],
                      why="nothing constrains what is sampled")
    if body.get("top_logprobs"):
        raise Refused("top_logprobs must be 0", got=str(body["top_logprobs"]), why="only sampled tokens' log-probs are kept")
    return body


def _asked(document: Mapping[str, Any], turns: tuple[Turn, ...], tools: tuple[ToolSchema, ...]) -> Asked:
    stop = document.get("stop") if document.get("stop") is not None else ()
    limit = document.get("max_completion_tokens", document.get("max_tokens"))
    for name, (kinds, least, most) in NUMBERS.items():
        value = document.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most):
            raise Refused(f"{name} must be a number of {least:g} to {most:g}", got=repr(value)[:60])
    for name, kind in (("stream", bool), ("logprobs", bool), ("model", str)):
        if not isinstance(document.get(name), kind | None):
            raise Refused(f"{name} must be a {'text' if kind is str else 'boolean'}", got=repr(document[name])[:60])
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise Refused("max_tokens must be a whole number above 0", got=repr(limit)[:60])
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list | tuple) else (None,)
    if not all(isinstance(one, str) and one for one in stops):
        raise Refused("stop must be texts", got=repr(stop)[:60])
    return Asked(model=document.get("model") or "", turns=turns, tools=tools, temperature=document.get("temperature"),
                 top_p=document.get("top_p"), max_tokens=limit, stop=stops, seed=document.get("seed"),
                 stream=bool(document.get("stream")), logprobs=bool(document.get("logprobs")))


def _turn(message: Any, place: int) -> Turn:
    role = message.get("role") if isinstance(message, dict) else None
    given = {key for key, value in message.items() if value is not None} if isinstance(message, dict) else set()
    if strange := sorted(map(str, given - {*MESSAGE, *UNREAD})):
        raise Refused(f"messages[{place}] has an unknown key {strange[0]}", why="what is ignored cannot be relied on",
                      fix=f"known are {', '.join(MESSAGE)}")
    for key, owner in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if key in given and message[key] and role != owner:
            raise Refused(f"messages[{place}] has {key}, which only a message of the {owner} may have", got=f"role {role}")
    if role == "developer":
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise Refused(f"messages[{place}].role must be system, user, assistant or tool", got=repr(role))
    content = _text(message.get("content"), place)
    if role == "assistant":
        try:
            calls = read_calls(message.get("tool_calls"))
        except Unreadable as error:
            raise Refused(f"messages[{place}].tool_calls holds something that is no call", got=str(error)) from error
        return Turn(role=role, action=Action(text=content, calls=calls))
    answers = message.get("tool_call_id")
    if not isinstance(answers, str | None):
        raise Refused(f"messages[{place}].tool_call_id must be a text", got=repr(answers)[:60])
    return Turn(role=role, content=content, call=answers)


def _text(content: Any, place: int) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text", ""), str)
                   for part in content):
            raise Refused(f"messages[{place}].content must be text", got=json.dumps(content)[:80],
                          why="the policy reads no images")
        return "".join(part.get("text", "") for part in content)
    if not isinstance(content, str):
        raise Refused(f"messages[{place}].content must be text", got=type(content).__name__)
    return content


def messages_of(turns: Sequence[Turn], write: Any) -> tuple[Message, ...]:
    """The turns as template messages; `write` spells an assistant's action."""
    return tuple(Message(role=turn.role,  # type: ignore[arg-type]
                         content=write(turn.action) if turn.action is not None else turn.content,
                         origin="policy" if turn.role == "assistant" else "environment") for turn in turns)
