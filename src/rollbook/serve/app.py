"""The HTTP side: OpenAI's chat and completion calls, bound to this machine, behind a token.

`/v1/...` belongs to the attempt `default`; `/attempts/NAME/v1/...` to the attempt of that name, which is what a harness gives an
agent as its base address. Where the attempt has an environment, `/attempts/NAME/tools` lists its tools, and arguments posted to
`/attempts/NAME/tools/TOOL` call one.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rollbook.records import Completion, RollbookError
from rollbook.serve.asking import Asked, Refused, chat, completion
from rollbook.serve.gateway import DEFAULT, Answered, Gateway
from rollbook.serve.workplace import Workplace

LARGEST = 16 * 2**20        # bytes of a request
REASONS = {"length": "length", "context_full": "length"}


class App:
    """The routes over one gateway. `model` is the name that the policy answers to; requests may name any."""

    def __init__(self, gateway: Gateway, *, token: str, model: str):
        self.gateway, self.token, self.model = gateway, token, model

    def starlette(self) -> Starlette:
        """The application; nothing is answered without the token."""
        routes = []
        for prefix in ("", "/attempts/{attempt}"):
            routes += [Route(f"{prefix}/v1/models", self.models),
                       Route(f"{prefix}/v1/chat/completions", self.chat, methods=["POST"]),
                       Route(f"{prefix}/v1/completions", self.completions, methods=["POST"])]
        routes += [Route("/attempts/{attempt}/tools", self.tools),
                   Route("/attempts/{attempt}/tools/{tool}", self.call, methods=["POST"])]
        return Starlette(routes=routes)

    async def tools(self, request: HttpRequest) -> Response:
        """The tools of the attempt's environment."""
        try:
            self._admit(request)
            place, _ = self._workplace(request)
        except Refused as error:
            return refused(error)
        return JSONResponse({"tools": [{"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
                                       for tool in place.tools], "ended": place.over})

    async def call(self, request: HttpRequest) -> Response:
        """What a tool of the attempt's environment answers; what goes wrong in it is data, as for the policy's own calls."""
        try:
            self._admit(request)
            place, loop = self._workplace(request)
            arguments = await self._body(request)
            if not isinstance(arguments, dict):
                raise Refused("the arguments of a tool are a JSON object", got=type(arguments).__name__)
            work = asyncio.run_coroutine_threadsafe(place.call(request.path_params["tool"], arguments), loop)
            reply = await asyncio.shield(asyncio.wrap_future(work))
        except Refused as error:
            return refused(error)
        return JSONResponse({"content": reply.content, "error": reply.error, "ended": place.over})

    def _workplace(self, request: HttpRequest) -> tuple[Workplace, asyncio.AbstractEventLoop]:
        attempt = self.gateway.attempt(request.path_params["attempt"])
        if attempt.workplace is None or self.gateway.workplaces is None:
            raise Refused("this attempt has no environment", status=404, got=attempt.name, why="its tools are the agent's own")
        return attempt.workplace, self.gateway.workplaces

    async def models(self, request: HttpRequest) -> Response:
        try:
            self._admit(request)
        except Refused as error:
            return refused(error)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "rollbook"}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(self, request: HttpRequest) -> Response:
        return await self._answer(request, "chat.completion")

    async def completions(self, request: HttpRequest) -> Response:
        return await self._answer(request, "text_completion")

    async def _answer(self, request: HttpRequest, kind: str) -> Response:
        name = request.path_params.get("attempt", DEFAULT)
        try:
            self._admit(request)
            body = await self._body(request)
            if kind == "chat.completion":
                asked = chat(body)
                work = self.gateway.chat(name, asked)
            else:
                prompt, asked = completion(body)
                work = self.gateway.complete(name, prompt, asked)
            # what is sampled is recorded whether or not the agent still waits for it
            answered = await asyncio.shield(asyncio.ensure_future(work))
        except Refused as error:
            return refused(error)
        except RollbookError as error:
            return refused(Refused(error.what, status=500, got=error.got, why=error.why, fix=error.fix))
        if asked.stream:
            return StreamingResponse(self._stream(answered, kind, asked), media_type="text/event-stream")
        return JSONResponse(self._document(answered, kind, asked))

    def _admit(self, request: HttpRequest) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused("the token is missing or wrong", status=401, fix="send `Authorization: Bearer TOKEN`")

    async def _body(self, request: HttpRequest) -> Any:
        data = b""
        async for part in request.stream():
            data += part
            if len(data) > LARGEST:
                raise Refused("the request is too large", status=413, got=f"more than {LARGEST} bytes")
        try:
            found = json.loads(data, parse_constant=_no_number)
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:       # broken Unicode is a ValueError too: no record could hold it
            raise Refused("the request is no JSON", got=str(error)[:80]) from error
        return found

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"rollbook-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.model}

    def _document(self, answered: Answered, kind: str, asked: Asked) -> dict[str, Any]:
        done = answered.completion
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._reason(answered), "logprobs": None}
        if kind == "chat.completion":
            choice["message"] = self._message(answered)
        else:
            choice["text"] = answered.action.text
        if asked.logprobs:
            choice["logprobs"] = self._logprobs(done, kind)
        return {**self._head(kind), "choices": [choice], "usage": self._usage(answered)}

    def _logprobs(self, done: Completion, kind: str) -> dict[str, Any]:
        """The sampled tokens' log-probs in the form of a chat, or of a plain completion, whose offsets count characters."""
        shown = [self.gateway.tokenizer.token_text(token) for token in done.token_ids]
        if kind == "chat.completion":
            return {"refusal": None, "content": [
                {"token": text, "logprob": logp, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logp in zip(shown, done.logps, strict=True)]}
        return {"tokens": shown, "token_logprobs": list(done.logps), "top_logprobs": None,
                "text_offset": list(itertools.accumulate(map(len, shown[:-1]), initial=0)) if shown else []}

    def _message(self, answered: Answered) -> dict[str, Any]:
        calls = self._calls(answered)
        message: dict[str, Any] = {"role": "assistant", "content": answered.action.text or (None if calls else "")}
        if calls:
            message["tool_calls"] = calls
        if answered.reasoning:
            message["reasoning_content"] = answered.reasoning
        return message

    def _calls(self, answered: Answered) -> list[dict[str, Any]]:
        return [{"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
                for call in answered.action.calls]

    def _usage(self, answered: Answered) -> dict[str, int]:
        asked, spent = answered.prompt_tokens, len(answered.completion.token_ids)
        return {"prompt_tokens": asked, "completion_tokens": spent, "total_tokens": asked + spent}

    def _reason(self, answered: Answered) -> str:
        return "tool_calls" if answered.action.calls else REASONS.get(answered.completion.stop_reason, "stop")

    async def _stream(self, answered: Answered, kind: str, asked: Asked) -> AsyncIterator[bytes]:
        """Server-sent events; log-probs stand in the last. Limit: the turn is sampled as a whole before its first event."""
        head = self._head("chat.completion.chunk" if kind == "chat.completion" else kind)
        for delta in self._deltas(answered, kind):
            choice = {"index": 0, "finish_reason": None, **delta}
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()
        nothing: dict[str, Any] = {"delta": {}} if kind == "chat.completion" else {"text": ""}
        nothing |= {"logprobs": self._logprobs(answered.completion, kind)} if asked.logprobs else {}
        last = {"index": 0, "finish_reason": self._reason(answered), **nothing}
        yield f"data: {json.dumps({**head, 'choices': [last], 'usage': self._usage(answered)})}\n\ndata: [DONE]\n\n".encode()

    def _deltas(self, answered: Answered, kind: str) -> list[dict[str, Any]]:
        if kind != "chat.completion":
            return [{"text": piece} for piece in _pieces(answered.action.text)]
        deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
        deltas += [{"delta": {"content": piece}} for piece in _pieces(answered.action.text)]
        for place, call in enumerate(self._calls(answered)):
            deltas.append({"delta": {"tool_calls": [{"index": place, **call}]}})
        return deltas


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _pieces(text: str, size: int = 24) -> list[str]:
    return [text[at:at + size] for at in range(0, len(text), size)]


def refused(error: Refused) -> JSONResponse:
    """OpenAI's shape of an error, with the four parts of ours."""
    kind = "authentication_error" if error.status == 401 else "invalid_request_error" if error.status < 500 else "server_error"
    return JSONResponse({"error": {"message": str(error), "type": kind, "param": None, "code": None}}, status_code=error.status)
