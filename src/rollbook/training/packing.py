"""Which sequences share a micro-batch: best fit over falling length (2404.10830), so that none is cut and little room is left.

Packed sequences do not see each other (`models.layout`); only how many passes a step takes depends on this.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Places of the sequences in parts of at most `room` tokens: the longest first, each into the fullest part that holds it.

    A sequence longer than the room stands alone. Equal lengths keep their order. All parts but one are more than half full.

    Example: best_fit([3, 6, 4, 2], 9) == [[1, 0], [2, 3]]
    """
    parts: list[list[int]] = []
    left: list[tuple[int, int]] = []            # room left in a part, and its place; sorted
    for place in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        size = lengths[place]
        at = bisect.bisect_left(left, (size, -1))
        if at < len(left):
            free, part = left.pop(at)
        else:
            free, part = room, len(parts)
            parts.append([])
        parts[part].append(place)
        if free > size:
            bisect.insort(left, (free - size, part))
    return parts
