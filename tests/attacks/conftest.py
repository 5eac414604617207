from attacked import QUICK  # noqa: F401
from gate_runs import copy, finished, key  # noqa: F401
from warmed import warm  # noqa: F401
