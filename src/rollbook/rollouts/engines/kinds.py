"""The engines there are, and what each makes of requests in flight."""

from __future__ import annotations

from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.served import ServedEngine
from rollbook.rollouts.engines.served_stream import ServedStream
from rollbook.rollouts.engines.stream import Stream

Engine = EmbeddedEngine | ServedEngine
AnyStream = Stream | ServedStream
