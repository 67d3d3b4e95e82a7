"""The regression gate: has a training step become slower, or does it do more than it did?"""
