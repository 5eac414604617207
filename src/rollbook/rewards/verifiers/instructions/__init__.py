"""Instruction following by rules: the twenty-five families of IFEval (arXiv 2311.07911), written from their description."""

from rollbook.rewards.verifiers.instructions.families import FAMILIES, INSTRUCTIONS, follows, instruction_following

__all__ = ["FAMILIES", "INSTRUCTIONS", "follows", "instruction_following"]
