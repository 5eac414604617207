"""How memory and time of updates and decoding grow: tables, JSON and a picture.

    python benchmarks/scaling.py [--rounds 2] [--json FILE] [--picture docs/img/scaling.svg]

Every point is a process of its own, so that one point's memory is not another's. Rates are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from arena import Rounds, race, table
from throughput import contender

GROUP, PROMPT, NEW = 8, 128, 112        # 1,024 packed tokens: one prompt and eight continuations
WHOLE = 1 << 20                         # one micro-batch, however long


def one(name: str, script: str, rounds: int, **settings: Any) -> Rounds:
    print(f"  {name}", flush=True)
    return race([contender(name, script, "own", **settings)], rounds)[name]


def memory(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Peak memory of a whole update in one micro-batch against its packed tokens: (tokens, GiB)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, script, more, most in (("Rollbook", "update_rollbook.py", {}, 8), ("Rollbook, checkpointing", "update_rollbook.py",
                                      {"checkpointing": True}, 8), ("plain loop", "update_loop.py", {}, 2)):
        for prompts in (1, 2, 4, 8):
            if prompts <= most:
                done = one(f"{name}, {1024 * prompts} packed tokens", script, rounds, prompts=prompts, prompt=PROMPT, group=GROUP, new=NEW,
                           max_batch_tokens=WHOLE, **more)
                found.setdefault(name, []).append((1024.0 * prompts, done.notes["peak_gib"]))
    return found


def groups(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of an update of 16 answers of 128 tokens whose prompts have 128, against the group's size."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, script in (("Rollbook", "update_rollbook.py"), ("plain loop", "update_loop.py")):
        for size in (1, 2, 4, 8, 16):
            done = one(f"{name}, groups of {size}", script, rounds, prompts=16 // size, prompt=128, group=size, new=128)
            found.setdefault(name, []).append((size, done.median_s))
    return found


def batch(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """New tokens a second against the number of requests (prompts of 40, 32 new tokens), alone and in groups of 8."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, group in (("every prompt once", 1), ("groups of 8", 8)):
        for size in (8, 16, 32, 64, 128):
            done = one(f"decode {size}, {name}", "decode_rollbook.py", rounds, batch=size, prompt=40, new=32, group=group)
            found.setdefault(name, []).append((size, done.rate))
    return found


def length(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """New tokens a second of 32 requests against how many each gets."""
    sizes = (32, 64, 128, 256)
    return {"32 requests": [(size, one(f"decode {size} new", "decode_rollbook.py", rounds, batch=32, prompt=40, new=size).rate)
                            for size in sizes]}


AXES = {"memory": ("packed tokens of an update", "peak memory, GiB"), "groups": ("group size", "seconds of an update"),
        "batch": ("requests at once", "new tokens/s"), "length": ("new tokens per request", "new tokens/s")}


def draw(found: dict[str, dict[str, list[tuple[float, float]]]], path: Path) -> None:
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rollbook"
    from matplotlib import pyplot as plt
    figure, places = plt.subplots(1, len(found), figsize=(4.2 * len(found), 3.4), layout="constrained")
    for place, (name, lines) in zip(places, found.items(), strict=True):
        for (label, points), marker in zip(lines.items(), "os^", strict=False):
            place.plot(*zip(*points, strict=True), marker=marker, label=label)
        place.set_xlabel(AXES[name][0])
        place.set_ylabel(AXES[name][1])
        place.set_ylim(bottom=0)
        place.grid(alpha=0.3)
        place.legend(fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, default=Path("docs/img/scaling.svg"))
    given = parser.parse_args()
    found = {"memory": memory(1), "groups": groups(given.rounds), "batch": batch(given.rounds), "length": length(given.rounds)}
    for name, lines in found.items():
        print(f"\n{AXES[name][1]} by {AXES[name][0]}")
        print(table([[label, *(f"{y:.3g}" for _, y in points)] for label, points in lines.items()],
                    ("", *(f"{x:g}" for x, _ in max(lines.values(), key=len)))))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    draw(found, given.picture)


if __name__ == "__main__":
    main()
