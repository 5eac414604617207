"""Decoding, GRPO steps and updates against what users would otherwise run, each in one run, interleaved: tables and JSON.

    python benchmarks/throughput.py decode|step|update|all [--rounds 5] [--json FILE]

Ratios are medians over rounds. `of limit` is the share of the rate at which these cores multiply large bf16 matrices, measured in
the same run. Peers live in environments of their own (`make bench-peers`); one that is not there is left out and said.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arena import Contender, Rounds, race, table

from rollbook.models.load import SMOLLM2, locate


def contender(name: str, script: str, python: str, **settings: Any) -> Contender:
    return Contender(name=name, script=script, python=python, settings={"model": str(locate(SMOLLM2)), **settings})


def ratio(mine: Rounds, other: Rounds) -> float:
    """How many times faster, median of the rounds' own ratios."""
    return statistics.median(o / m for m, o in zip(mine.seconds, other.seconds, strict=True))


def decode(rounds: int) -> dict[str, Any]:
    """Prompts of 40 tokens, 64 new ones: batch 64 against both peers, batch 128 alone against the limit."""
    found: dict[str, Any] = {}
    for batch in (64, 128):
        size = {"batch": batch, "prompt": 40, "new": 64}
        taking = [contender("rollbook", "decode_rollbook.py", "own", **size)]
        if batch == 64:
            taking += [contender("transformers generate", "decode_transformers.py", "own", **size),
                       contender("vLLM CPU", "decode_vllm.py", "vllm", **size)]
        print(f"decode, batch {batch}, 40-token prompts, 64 new tokens, bf16")
        done = race(taking, rounds)
        mine = done["rollbook"]
        work = 2.0 * mine.notes["parameters"] * batch * 64 + 2.0 * mine.notes["body"] * batch * 40
        of_limit = work / mine.median_s / 1e9 / mine.notes["limit_gflops"]
        rows = [[name, f"{r.rate:.0f}", f"{r.median_s:.2f}", "" if name == "rollbook" else f"{ratio(mine, r):.2f} x"]
                for name, r in done.items()]
        print(table(rows, ("engine", "new tokens/s", "s", "rollbook is faster by")))
        print(f"of the measured limit ({mine.notes['limit_gflops']:.0f} GFLOP/s), prompts counted: {100 * of_limit:.0f}%\n")
        found[f"batch {batch}"] = {"of_limit": of_limit} | {name: {"tokens_per_s": r.rate, "seconds": r.seconds} for name, r in done.items()}
    return found


def step(rounds: int) -> dict[str, Any]:
    """Full GRPO steps against TRL: 4 prompts x 8 x 32 new tokens (prompts of 40), and 2 prompts of 128 x 8 x 128."""
    found: dict[str, Any] = {}
    for prompts, prompt, new in ((4, 40, 32), (2, 128, 128)):
        size = {"prompts": prompts, "prompt": prompt, "group": 8, "new": new}
        print(f"GRPO step, {prompts} prompts of {prompt} tokens x 8 x {new} new tokens, bf16; Rollbook's with every record")
        done = race([contender("rollbook", "step_rollbook.py", "own", **size), contender("TRL", "step_trl.py", "trl", **size)], rounds)
        mine = done["rollbook"]
        rows = [[name, f"{r.median_s:.2f}", "" if name == "rollbook" else f"{ratio(mine, r):.2f} x"] for name, r in done.items()]
        print(table(rows, ("step of", "s", "rollbook is faster by")), "\n")
        found[f"{prompts}x{prompt}x8x{new}"] = {name: {"seconds": r.seconds, **r.notes} for name, r in done.items()}
    return found


def update(rounds: int) -> dict[str, Any]:
    """Updates on groups of 8 whose prompts are as long as their completions, against a plain transformers loop."""
    size = {"prompts": 4, "prompt": 128, "group": 8, "new": 128}
    print("update, 4 prompts of 128 tokens x 8 completions of 128")
    done = race([contender("rollbook", "update_rollbook.py", "own", **size),
                 contender("plain loop", "update_loop.py", "own", **size)], rounds)
    mine = done["rollbook"]
    of_limit = mine.notes["flops"] / mine.median_s / 1e9 / mine.notes["limit_gflops"]
    rows = [[name, f"{r.rate:.0f}", f"{r.median_s:.2f}", "" if name == "rollbook" else f"{ratio(mine, r):.2f} x"]
            for name, r in done.items()]
    print(table(rows, ("update of", "tokens/s, prompts repeated", "s", "rollbook is faster by")))
    print(f"packed tokens/s {mine.notes['packed'] / mine.median_s:.0f}; of the measured limit: {100 * of_limit:.0f}%\n")
    return {"of_limit": of_limit} | {name: {"tokens_per_s": r.rate, "seconds": r.seconds} for name, r in done.items()}


MEASURES: dict[str, Callable[[int], dict[str, Any]]] = {"decode": decode, "step": step, "update": update}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*MEASURES, "all"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {name: measure(given.rounds) for name, measure in MEASURES.items() if given.what in (name, "all")}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
