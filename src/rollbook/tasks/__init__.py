"""What to solve: acquisition from generators, contracts, splits, demonstrations, selection."""

from rollbook.tasks.chat import GENERAL_PROMPTS
from rollbook.tasks.decontamination import Likeness, Side, decontaminate, ids_hash
from rollbook.tasks.demonstrations import STYLES, Written, applicable, demonstrations, document, solution, write_trace
from rollbook.tasks.errors import TaskError
from rollbook.tasks.generators import GENERATORS, Acquired, acquire, shares
from rollbook.tasks.leakage import Leak, leaks
from rollbook.tasks.leakage import check as check_leaks
from rollbook.tasks.selection import Selection, select
from rollbook.tasks.splits import Split, split

__all__ = ["GENERAL_PROMPTS", "GENERATORS", "STYLES", "Acquired", "Leak", "Likeness", "Selection", "Side", "Split",
           "TaskError", "Written", "acquire", "applicable", "check_leaks", "decontaminate", "demonstrations", "document",
           "ids_hash", "leaks", "select", "shares", "solution", "split", "write_trace"]
