"""The single-turn environment: one prompt, one response, no state to reset and no network."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.records import EnvironmentImage, VerifierStamp, canonical, digest, encode

NAME = "single_turn"
VERSION = "1"


def single_turn_image(*, verifier: VerifierStamp, dependencies: Mapping[str, str]) -> EnvironmentImage:
    """The image whose digest changes with the verifier's code or settings, and with the versions it runs on.

    The caller hands over the judge's stamp and its package versions: environments and rewards are on one level.
    """
    document = {"name": NAME, "version": VERSION, "verifier": encode(verifier), "dependencies": dict(dependencies)}
    return EnvironmentImage(name=NAME, digest=digest(canonical(document)), dependencies=dict(dependencies), network="none",
                            credentials="none", reset="stateless", hidden_tests=None)
