"""The cases of ``scripts/validate_gpu.py``."""
