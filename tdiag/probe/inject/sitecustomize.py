"""Python imports this at start-up because tdiag put its folder first on PYTHONPATH.

It restores ``sys.path``, runs the user's own ``sitecustomize`` if there is one, and loads the probe
by path, so that tdiag need not be installed in this environment.
"""

import os
import sys


def _chain(here: str) -> None:
    """Run the ``sitecustomize`` that this one hides, under its own name."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    sys.path_importer_cache.pop(here, None)
    injected = sys.modules.pop("sitecustomize", None)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        if injected is not None:
            sys.modules["sitecustomize"] = injected  # site.py expects the import to have worked
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load_probe(here: str) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(here)
    spec = spec_from_file_location(
        "tdiag_probe",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["tdiag_probe"] = module
    spec.loader.exec_module(module)
    module.start(os.environ["TDIAG_RUN"])


_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("TDIAG_RUN"):
    try:
        _load_probe(_here)
    except Exception as error:  # the user's program must start even if tdiag fails
        sys.modules.pop("tdiag_probe", None)
        try:
            with open(os.path.join(os.environ["TDIAG_RUN"], "probe-error.txt"), "a") as file:
                file.write(f"{type(error).__name__}: {error}\n")
        except OSError:
            pass
_chain(_here)
