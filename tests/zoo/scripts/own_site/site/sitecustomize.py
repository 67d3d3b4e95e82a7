"""The user's own start-up file, found through PYTHONPATH; it must still run under a watcher."""

import builtins

builtins.zoo_own_sitecustomize = True
