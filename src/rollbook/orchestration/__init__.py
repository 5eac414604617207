"""Who runs when: the policy-improvement step, loops, stages, resume."""
