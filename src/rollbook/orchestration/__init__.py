"""Who runs when: the step, the stages, the run."""
