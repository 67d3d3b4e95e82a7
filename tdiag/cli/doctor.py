def doctor() -> None:
    """What this machine allows."""
