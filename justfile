# `just` lists the recipes; `.ci/run` runs what CI runs, in a clean checkout.
python := ".venv/bin/python"

_list:
    @just --list

# A virtual environment with everything, pinned
setup:
    python3 -m venv .venv
    .venv/bin/pip install -q -c constraints.txt -e '.[dev,frameworks]'

# All tests but the marked ones
test *words:
    .venv/bin/pytest -n auto {{words}}

# One rule's tests: `just rule TD203`
rule code:
    .venv/bin/pytest tests/rules -k {{code}}

# Whole trainings, launchers and frameworks
training *words:
    .venv/bin/pytest -n auto -m training {{words}}

# Whole measurements, on a machine that is otherwise idle
slow *words:
    .venv/bin/pytest -m slow {{words}}

# Format, lint and types
check:
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/mypy

# Everything that is generated: rule pages, reports in the docs, golden files. Read the diff
docs:
    {{python}} scripts/generate_docs.py
    {{python}} scripts/generate_samples.py
    TDIAG_WRITE_SNAPSHOTS=1 .venv/bin/pytest -q tests/rules/test_every_rule.py tests/report/test_terminal.py
