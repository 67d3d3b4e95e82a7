"""The regression gate: is a training step slower, or does it do more work, than before?"""
