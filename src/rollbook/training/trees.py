"""From trajectories to the packed trees a forward pass takes."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.models.layout import Tree
from rollbook.records import Demonstration, Experience, RecordError


def experience_trees(members: Sequence[Experience]) -> tuple[Tree, ...]:
    """Consecutive members with one prompt become one tree, so their prompt is computed once."""
    trees: list[Tree] = []
    for member in members:
        prompt = member.trace.prompt_ids
        rest = member.trace.segments[1:]
        own = tuple(token for segment in rest for token in segment.token_ids)
        acts = tuple(segment.owner == "policy" for segment in rest for _ in segment.token_ids)
        if trees and trees[-1].prompt == prompt:
            last = trees[-1]
            trees[-1] = Tree(prompt=prompt, continuations=(*last.continuations, own), actions=(*last.actions, acts))
        else:
            trees.append(Tree(prompt=prompt, continuations=(own,), actions=(acts,)))
    return tuple(trees)


def demonstration_tree(demonstration: Demonstration) -> Tree:
    """The first span is the prompt; of the rest, only the policy's own tokens are actions."""
    first = demonstration.owners[0]
    if first.owner == "policy" or len(demonstration.owners) < 2:
        raise RecordError("a demonstration starts with tokens the policy did not write", got=str(demonstration.owners[:2]),
                          why="the first policy token is predicted from something")
    ids = demonstration.token_ids
    acts = tuple(span.owner == "policy" for span in demonstration.owners[1:] for _ in range(span.length))
    return Tree(prompt=ids[:first.length], continuations=(ids[first.length:],), actions=(acts,))
