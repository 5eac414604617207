from warmed import warm  # noqa: F401
