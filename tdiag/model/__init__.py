"""Types only: what rules, diagnose, report, gate and cli exchange."""
