"""Claims drawn at random for a check by eye against the documents: python scripts/sample_claims.py SEED COUNT [LABEL...]"""

import random
import sys

from rollbook.evidence.agreement import shown
from rollbook.evidence.registry import builtin


def main(seed: int, count: int, labels: list[str]) -> None:
    registry = builtin()
    names = [name for name in registry.ids if not labels or registry.claim(name).label in labels]
    for name in sorted(random.Random(seed).sample(names, count)):
        claim = registry.claim(name)
        about = f"{registry.release(claim.release).subject}{f' [{claim.model}]' if claim.model else ''}, {claim.stage}"
        print(f"{claim.label} {name} = {shown(claim)}\n    {claim.says}\n    {about}; {claim.source.document} {claim.source.section}"
              + (f"; note: {claim.note}" if claim.note else ""))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
