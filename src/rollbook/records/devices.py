"""How a setting names the device that a run computes on."""

import re

DEVICE = re.compile(r"cpu|cuda(:(0|[1-9][0-9]*))?")
