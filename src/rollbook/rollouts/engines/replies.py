"""What a vLLM server is asked and what its reply says: ids, log-probs, versions and supports, each checked against the others.

The interface is vLLM's token-in/token-out endpoint (`/inference/v1/generate`), whose fields are named as there.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbook.records import Completion, Fault, FaultCode, Request, SampledSupport, sampled_hash
from rollbook.records.rollout import StopReason
from rollbook.rollouts.engines.refusing import fault
from rollbook.rollouts.engines.stopping import UNREADABLE

NO_LOGP = -9999.0       # what the server writes where a log-prob is NaN, minus infinity or missing
WHOLE = 1e-3            # how far the probabilities of a whole support may be from 1 in the server's fp32
NAMED = "token_id:"     # how a server started with --return-tokens-as-token-ids writes a token


class Wrong(Exception):
    """A reply that does not hold together; `code` is the kind of fault."""

    def __init__(self, code: FaultCode, what: str, got: str, why: str):
        super().__init__(what)
        self.code: FaultCode = code
        self.what, self.got, self.why = what, got, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one engine asks and reads. `text` gives the text of ids, special tokens shown; None: the text is not asked for.

    `shown` is how many ids a server lists per token where it has no sampling masks.
    """

    stop_ids: frozenset[int]
    text: Callable[[Sequence[int]], str] | None
    shown: int


def seed_of(request: Request, drawn: int) -> int:
    """The seed of a request: a function of the run's seed, the attempt's name and how much was drawn for it before."""
    words = hashlib.sha256(f"{request.seed}\0{request.key}\0{drawn}".encode()).digest()
    return int.from_bytes(words[:8], "big") >> 2


def restricted(request: Request) -> bool:
    """Whether tokens are drawn from a part of the vocabulary."""
    return request.top_k > 0 or request.top_p < 1.0 or request.min_p > 0.0


def asked(request: Request, manner: Manner, *, name: str, salt: str, drawn: int) -> dict[str, Any]:
    """The body of the call; `salt` keeps prefix caches of different versions apart."""
    shown = min(request.top_k or manner.shown, manner.shown) if restricted(request) else 0
    parameters: dict[str, Any] = {
        "temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k, "min_p": request.min_p,
        "max_tokens": request.max_tokens, "seed": seed_of(request, drawn), "logprobs": shown, "ignore_eos": True,
        "stop_token_ids": sorted(manner.stop_ids | set(request.stop_ids)), "skip_special_tokens": False,
        "spaces_between_special_tokens": False, "include_stop_str_in_output": True}
    if request.stop:
        parameters["stop"] = list(request.stop)
    return {"request_id": name, "token_ids": list(request.prompt_ids), "sampling_params": parameters, "cache_salt": salt,
            "output_mode": "tokens" if manner.text is None else "text"}


def read(request: Request, reply: Any, manner: Manner, *, latency_s: float, newest: int) -> Completion:
    """The completion that a reply holds; one that does not hold together is a failed one with its fault and no tokens.

    `newest` is the highest version that was published to the server.
    """
    try:
        return _read(request, reply, manner, latency_s=latency_s, newest=newest)
    except Wrong as wrong:
        return failed(request, wrong.code, wrong.what, wrong.got, why=wrong.why, latency_s=latency_s)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return failed(request, "malformed", "was answered with a document of another form",
                      f"{type(error).__name__}: {error}"[:200], why="ids, log-probs and versions cannot be read from it",
                      latency_s=latency_s)


def failed(request: Request, code: FaultCode, what: str, got: str, *, why: str | None = None,
           latency_s: float = 0.0) -> Completion:
    """A request that was not answered, or with something that cannot be trusted: nothing of it is kept."""
    return Completion(key=request.key, token_ids=(), logps=(), versions=(), stop_reason="failed", latency_s=latency_s,
                      fault=fault(code, request, what, got, why=why))


def unanswerable(request: Request, fault: Fault) -> Completion:
    """A request that was never asked."""
    return Completion(key=request.key, token_ids=(), logps=(), versions=(), stop_reason="failed", latency_s=0.0, fault=fault)


def whole(completion: Completion) -> Completion:
    """The completion, unless somebody else ended it: nobody here did."""
    if completion.stop_reason != "cancelled":
        return completion
    return replace(completion, token_ids=(), logps=(), versions=(), support=None, sampled=None, stop_reason="failed",
                   fault=Fault(code="refused", detail=f"request {completion.key} was aborted at the server by somebody else"))


def cut(completion: Completion, request: Request, wanted: int) -> Completion:
    """A turn that was to have `wanted` tokens and ended at the context's end says so."""
    if completion.stop_reason == "length" and request.max_tokens < wanted:
        return replace(completion, stop_reason="context_full")
    return completion


def _read(request: Request, reply: Any, manner: Manner, *, latency_s: float, newest: int) -> Completion:
    choice = reply["choices"][0]
    ids = tuple(map(int, choice["token_ids"] or ()))
    content = ((choice.get("logprobs") or {}).get("content")) or []
    logps = _logps(ids, content)
    versions = _versions(len(ids), choice.get("weight_versions") or (), newest)
    _check_text(ids, choice, manner)
    reason, by = _ended(request, ids, choice, manner)
    return Completion(key=request.key, token_ids=ids, logps=logps, versions=versions, stop_reason=reason, latency_s=latency_s,
                      stopped_by=by, support=_support(request, ids, choice, content) if restricted(request) and ids else None,
                      sampled=sampled_hash(ids, logps, versions) if ids else None)


def _logps(ids: tuple[int, ...], content: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    if len(content) != len(ids):
        raise Wrong("logprobs", "came back with another number of log-probs than of tokens", f"{len(content)} for {len(ids)}",
                    "a token without its log-prob at sampling time cannot be trained on")
    other = [place for place, one in enumerate(content) if (named := _id_of(one)) is not None and named != ids[place]]
    if other:
        raise Wrong("logprobs", "came back with log-probs of other tokens than it names",
                    f"{content[other[0]].get('token')} at place {other[0]}, the id is {ids[other[0]]}", "none could be trusted")
    logps = tuple(float(one["logprob"]) for one in content)
    odd = next((place for place, logp in enumerate(logps) if not NO_LOGP < logp < math.inf), None)
    if odd is not None:
        raise Wrong("logits", "met logits that are not finite", f"log-prob {logps[odd]} at token {odd}",
                    "the weights are damaged, or overflow in the server's precision")
    return logps


def _id_of(one: Mapping[str, Any]) -> int | None:
    """The id that a log-prob names; None where the server shows text instead."""
    if "token_id" in one:
        return int(one["token_id"])
    token = one.get("token")
    return int(token.removeprefix(NAMED)) if isinstance(token, str) and token.startswith(NAMED) else None


def _versions(count: int, spans: Sequence[Mapping[str, Any]], newest: int) -> tuple[int, ...]:
    """The version of each token, from spans that must follow each other without a gap."""
    found: list[int] = []
    for span in spans:
        label, start, end = str(span["version"]), int(span["start"]), int(span["end"])
        if not label.isdigit() or int(label) > newest or start != len(found) or not start <= end <= count:
            raise Wrong("version", "came back with tokens of a version that was never published",
                        f"{label!r} for tokens {start} to {end} of {count}, newest is {newest}",
                        "how old they are would not be known")
        found += [int(label)] * (end - start)
    if len(found) != count:
        raise Wrong("version", "came back with tokens of no version", f"versions of {len(found)} of {count} tokens",
                    "how old they are would not be known")
    return tuple(found)


def _check_text(ids: tuple[int, ...], choice: Mapping[str, Any], manner: Manner) -> None:
    """The server's text is that of its ids; bytes that are no character yet may be held back."""
    if manner.text is None:
        return
    theirs, ours = choice["text"], manner.text(ids)
    said, read_ = (str(one).replace(UNREADABLE, "") for one in (theirs, ours))
    if said == read_ or (ours.endswith(UNREADABLE) and read_.startswith(said)):
        return
    raise Wrong("text", "came back with a text that is not that of its ids", f"{said[:60]!r} for {read_[:60]!r}",
                "the server has another tokenizer, or the ids are not what it sampled")


def _ended(request: Request, ids: tuple[int, ...], choice: Mapping[str, Any],
           manner: Manner) -> tuple[StopReason, int | str | None]:
    finish, by = choice.get("finish_reason"), choice.get("stop_reason")
    match finish:
        case "stop" if isinstance(by, str) and by in request.stop:
            return "stop_string", by
        case "stop" if ids and ids[-1] in (manner.stop_ids | set(request.stop_ids)):
            return "end_of_turn", ids[-1]
        case "length" if len(ids) == request.max_tokens:
            return "length", None
        case "abort":
            return "cancelled", None
    raise Wrong("malformed", "ended for a reason that its tokens do not show",
                f"finish_reason {finish!r}, stop_reason {by!r} after {len(ids)} of {request.max_tokens} tokens",
                "what ended an answer is part of the record")


def _support(request: Request, ids: tuple[int, ...], choice: Mapping[str, Any],
             content: Sequence[Mapping[str, Any]]) -> SampledSupport:
    """The ids that each token was drawn from: the server's sampling masks, else those of its list that have probability."""
    masks = choice.get("sampling_mask")
    kept = [tuple(sorted(map(int, row))) for row in masks] if masks is not None else [_listed(one) for one in content]
    if len(kept) != len(ids) or any(token not in row for token, row in zip(ids, kept, strict=False)):
        raise Wrong("support", "came back without the ids that its tokens were drawn from", f"{len(kept)} supports of {len(ids)}",
                    "log-probs over an unknown support are no log-probs")
    if request.top_k and (most := max(map(len, kept))) > request.top_k:
        raise Wrong("support", "was drawn from more ids than top_k allows", f"{most} for {request.top_k}",
                    "the server samples otherwise than it was asked")
    return SampledSupport(ids=array("i", [one for row in kept for one in row]), counts=tuple(map(len, kept)), log_mass=None)


def _listed(one: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids of a token's list that have probability; the list must be longer than they are, or hold all of the probability."""
    found: dict[int, float] = {}
    shown = [*one["top_logprobs"], one]
    for entry in shown:
        token = _id_of(entry)
        if token is None:
            raise Wrong("support", "came back with a list of texts in place of ids", repr(entry.get("token"))[:60],
                        "start the server with --return-tokens-as-token-ids")
        found[token] = float(entry["logprob"])
    kept = {token: logp for token, logp in found.items() if logp > NO_LOGP}
    if abs(sum(map(math.exp, kept.values())) - 1.0) > WHOLE:
        raise Wrong("support", "was drawn from more ids than the server shows", f"{len(kept)} with "
                    f"{sum(map(math.exp, kept.values())):.4f} of the probability",
                    "raise run.engine.shown and the server's --max-logprobs, or lower top_p")
    return tuple(sorted(kept))
