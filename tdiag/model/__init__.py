"""Types only: what rules, diagnose, report, gate and cli hand to each other."""
