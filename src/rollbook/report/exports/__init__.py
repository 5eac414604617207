"""Where people already look: the numbers of a run in the formats of other tools. Each tool is imported in its own module only."""
