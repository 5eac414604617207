"""Training while sampling: generators, verifiers and a learner between bounded queues, with a hard bound on age."""
