"""From trajectories to the packed trees a forward pass takes."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import torch
from torch import Tensor

from rollbook.models.layout import Tree
from rollbook.models.routing import TreeRoutes, pack_routes
from rollbook.models.support import Support, recorded_support
from rollbook.records import Demonstration, Experience, RecordError, SampledSupport, Segment, Trace


def experience_trees(members: Sequence[Experience]) -> tuple[Tree, ...]:
    """Consecutive members with one prompt become one tree, so their prompt is computed once; their prompt took one route.

    A member of several contexts has a continuation for each that is trained, in the order in which its tokens are packed.
    """
    trees: list[Tree] = []
    routed: str | None = None
    for trace in (context for member in members for context in member.trace.contexts()):
        prompt, before = trace.prompt_ids, routed
        routed = _prompt_routes(trace)
        rest = _upto_last_action(trace.segments[1:])
        own = tuple(token for segment in rest for token in segment.token_ids)
        acts = tuple(segment.owner == "policy" for segment in rest for _ in segment.token_ids)
        if trees and trees[-1].prompt == prompt and before == routed:
            last = trees[-1]
            trees[-1] = Tree(prompt=prompt, continuations=(*last.continuations, own), actions=(*last.actions, acts))
        else:
            trees.append(Tree(prompt=prompt, continuations=(own,), actions=(acts,)))
    return tuple(trees)


def _upto_last_action(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The segments without what came behind the policy's last token: nothing depends on that, however long it is."""
    if all(segment.owner == "policy" for segment in segments[-1:]):
        return segments
    last = max((place for place, segment in enumerate(segments, start=1) if segment.owner == "policy"), default=0)
    return segments[:last]


def _prompt_routes(trace: Trace) -> str | None:
    """What tells one way of computing a prompt from another: the experts that its positions took."""
    kept = trace.kept
    if kept is None or not kept.routes:
        return None
    whole, tokens = base64.b64decode(kept.routes), len(trace.token_ids) - 1
    return whole[:len(whole) // max(tokens, 1) * len(trace.prompt_ids)].hex()


def sampled_routes(traces: Sequence[Trace], trees: Sequence[Tree], *, layers: int, per_token: int) -> Tensor:
    """The experts that the engine took at every position of these trees [L, Y, K], in the order of their layout.

    The last token of a sequence was sampled and never read: nothing depends on its experts, the first ones stand for them.
    """
    routes, at = [], 0
    for tree in trees:
        own = [_routes_of(trace, layers, per_token) for trace in traces[at:at + len(tree.continuations)]]
        at, size = at + len(own), len(tree.prompt)
        routes.append(TreeRoutes(prompt_PYK=own[0][:size], continuations=tuple(each[size:] for each in own)))
    return pack_routes(trees, routes)


def _routes_of(trace: Trace, layers: int, per_token: int) -> Tensor:
    kept, tokens = trace.kept, len(trace.token_ids)
    found = torch.tensor(() if kept is None else kept.experts, dtype=torch.int64)
    if found.numel() != (tokens - 1) * layers * per_token:
        raise RecordError(f"the trajectory of {trace.attempt} does not say which experts its positions took",
                          got=f"{found.numel()} numbers for {tokens - 1} positions, {layers} layers, {per_token} a token",
                          why="the stage trains on the routes that the engine took", fix="sample it with routing: sampled")
    last = torch.arange(per_token).expand(1, layers, per_token)
    return torch.cat([found.view(tokens - 1, layers, per_token), last])


def sampled_supports(traces: Sequence[Trace]) -> Support | None:
    """What every action token of these trajectories was drawn from; None where none says it."""
    kept = [trace.kept for trace in traces]
    held = [None if one is None or not one.counts else SampledSupport(ids=one.ids, counts=one.counts, log_mass=None)
            for one in kept]
    return recorded_support(held) if any(one is not None for one in held) else None


def demonstration_tree(demonstration: Demonstration) -> Tree:
    """The first span is the prompt; of the rest, only the policy's own tokens are actions."""
    first = demonstration.owners[0]
    if first.owner == "policy" or len(demonstration.owners) < 2:
        raise RecordError("a demonstration starts with tokens the policy did not write", got=str(demonstration.owners[:2]),
                          why="the first policy token is predicted from something")
    ids = demonstration.token_ids
    acts = tuple(span.owner == "policy" for span in demonstration.owners[1:] for _ in range(span.length))
    return Tree(prompt=ids[:first.length], continuations=(ids[first.length:],), actions=(acts,))
