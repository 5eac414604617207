"""An OpenAI chat request as typed data; what is not understood is refused, as everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.records import Action, Message, RecordError, RollbookError, ToolCall, ToolSchema
from rollbook.records.codec import nearest

HARMLESS = ("user", "metadata", "store", "parallel_tool_calls", "stream_options", "service_tier", "prompt_cache_key",
            "safety_identifier", "reasoning_effort")       # say nothing about what is sampled here
NUMBERS: Mapping[str, tuple[Any, float, float]] = {"temperature": ((int, float), 0.0, 100.0),
                                                    "top_p": ((int, float), 1e-6, 1.0), "seed": ((int,), 0, 2**63 - 1)}
ZERO = ("frequency_penalty", "presence_penalty")
KNOWN = ("model", "messages", "prompt", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "max_completion_tokens",
         "stop", "seed", "n", "stream", "logprobs", "top_logprobs", "response_format", *ZERO, *HARMLESS)


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
    document = _checked(body, "messages")
    messages = document["messages"]
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list of at least one message", got=type(messages).__name__)
    choice = document.get("tool_choice", "auto")
    if choice not in ("auto", "none", None):
        raise Refused("tool_choice must be auto or none", got=json.dumps(choice)[:80], why="the policy decides whether it calls")
    listed = document.get("tools") or []
    if not isinstance(listed, list):
        raise Refused("tools must be a list", got=type(listed).__name__)
    tools = tuple(map(_tool, listed)) if choice != "none" else ()
    return _asked(document, tuple(_turn(message, place) for place, message in enumerate(messages)), tools)


def completion(body: Any) -> tuple[str, Asked]:
    """A plain completion: the prompt's text, and the rest of the request."""
    document = _checked(body, "prompt")
    prompt = document["prompt"]
    if not isinstance(prompt, str):
        raise Refused("prompt must be one text", got=type(prompt).__name__)
    return prompt, _asked(document, (), ())


def _checked(body: Any, needed: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused("the request must be a JSON object", got=type(body).__name__)
    for key in body:
        if key not in KNOWN:
            raise Refused(f"unknown key {key}", got=repr(body[key])[:60], why="what is ignored cannot be relied on",
                          fix=f"nearest names: {nearest(str(key), list(KNOWN))}")
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


def _tool(document: Any) -> ToolSchema:
    function = document.get("function") if isinstance(document, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("a tool must be a function with a name", got=json.dumps(document)[:80])
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict) or not isinstance(
            parameters.get("required", []), list) or not isinstance(function.get("description") or "", str):
        raise Refused("a tool has a text for its description and a JSON schema for its parameters", got=json.dumps(document)[:80])
    try:
        return ToolSchema(name=function["name"], description=function.get("description") or "", parameters=parameters)
    except RecordError as error:
        raise Refused(error.what, got=error.got) from error


def _turn(message: Any, place: int) -> Turn:
    role = message.get("role") if isinstance(message, dict) else None
    if role == "developer":
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise Refused(f"messages[{place}].role must be system, user, assistant or tool", got=repr(role))
    content = _text(message.get("content"), place)
    if role == "assistant":
        made = message.get("tool_calls") or []
        if not isinstance(made, list):
            raise Refused(f"messages[{place}].tool_calls must be a list", got=type(made).__name__)
        calls = tuple(_call(call, place) for call in made)
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


def _call(call: Any, place: int) -> ToolCall:
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}", parse_constant=_no_number)
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        if not isinstance(arguments, dict):
            raise ValueError("its arguments are no object")
        if not isinstance(function["name"], str):
            raise ValueError("its function's name is no text")
        return ToolCall(id=str(call.get("id", "")), name=function["name"], arguments=arguments)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Refused(f"messages[{place}].tool_calls holds something that is no call", got=str(error)[:80]) from error


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def messages_of(turns: Sequence[Turn], write: Any) -> tuple[Message, ...]:
    """The turns as template messages; `write` spells an assistant's action."""
    return tuple(Message(role=turn.role,  # type: ignore[arg-type]
                         content=write(turn.action) if turn.action is not None else turn.content,
                         origin="policy" if turn.role == "assistant" else "environment") for turn in turns)
