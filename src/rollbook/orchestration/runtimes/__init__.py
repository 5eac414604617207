"""Where generators run beside the learner: in its own process, in others of this machine, as actors of a cluster."""
