"""Learning: one update per family of losses."""
