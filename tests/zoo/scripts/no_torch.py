"""A Python program without torch."""

import argparse

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=40)
args = options.parse_args()
print("sum", sum(range(args.steps)))
