"""Rules that find rewards got without doing the task: over tool calls, edits, programs and texts, with what to do about each."""

from rollbook.environments.guard.events import Deed, Setting, deed_of, deeds
from rollbook.environments.guard.rules import RULES, VERSION, Rule
from rollbook.environments.guard.watching import Finding, Guard, chosen_rules

__all__ = ["RULES", "VERSION", "Deed", "Finding", "Guard", "Rule", "Setting", "chosen_rules", "deed_of", "deeds"]
