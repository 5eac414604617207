"""Claims that can be tried again here: a plan fixed before the runs, a queue that resumes, a verdict by the rule of the plan."""
