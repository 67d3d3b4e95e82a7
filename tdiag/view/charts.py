"""Runs TensorBoard with torch-tb-profiler's page made to work without the internet.

That page loads Google Charts and, for its Trace view, a polyfill from the internet; without them it
stays empty. Here both are replaced: Google Charts by ``static/charts.js``, which draws with the
plotly package's script, and the polyfill by ``static/custom_elements_v0.js``. The Trace view also
uses HTML Imports, which no browser supports any more, so its page is served as one file.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tdiag.report.html.library import plotly_file

GOOGLE_CHARTS = "--google-charts"  # the option: Google Charts if they can be loaded
STATIC = Path(__file__).parent / "static"
_LOADER = re.compile(rb'<script src="https://[^"]*/charts/loader\.js"></script>')
_CHARTS = b'<script src="charts.js"></script>'
_POLYFILL = re.compile(rb'<script src="https://[^"]*/webcomponents\.min\.js"></script>')
# An import is UTF-8, so the page that includes it must be, too.
_ELEMENTS = b'<meta charset="utf-8"><script src="custom_elements_v0.js"></script>'
_IMPORT = re.compile(rb'<link rel="import" href="([^"/]+)"[^>]*>')

Change = tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]]


def complete(plugin: Any, google: bool = False) -> None:
    """Make the plugin (its class) serve the changed pages, and the scripts that they request.

    ``google``: request Google Charts first; the replacement is used if they do not load.
    """
    static = Path(inspect.getfile(plugin)).parent / "static"
    pages: dict[str, list[Change]] = {
        "/index.html": [(_LOADER, lambda found: (found[0] if google else b"") + _CHARTS)],
        "/trace_embedding.html": [
            (_POLYFILL, lambda _: _ELEMENTS),
            (_IMPORT, lambda found: (static / found[1].decode()).read_bytes()),
        ],
    }
    scripts = {f"/{file.name}": file for file in STATIC.glob("*.js")}
    if file := plotly_file():
        scripts["/plotly.min.js"] = file
    original = plugin.get_plugin_apps

    def get_plugin_apps(self: Any) -> dict[str, Any]:
        apps = dict(original(self))
        changed = {at: partial(_page, apps[at], changes) for at, changes in pages.items()}
        return apps | changed | {place: partial(_script, file) for place, file in scripts.items()}

    plugin.get_plugin_apps = get_plugin_apps


def _page(app: Any, changes: list[Change], environ: Any, start: Any) -> Any:
    from werkzeug import Response

    response = Response.from_app(app, environ)
    for old, new in changes:
        response.set_data(old.sub(new, response.get_data()))
    return response(environ, start)


def _script(file: Path, environ: Any, start: Any) -> Any:
    from werkzeug import Response

    return Response(file.read_bytes(), mimetype="text/javascript")(environ, start)


def main() -> int:
    """Takes TensorBoard's arguments, and :data:`GOOGLE_CHARTS`."""
    from tensorboard.main import run_main
    from torch_tb_profiler.plugin import TorchProfilerPlugin

    # tdiag was killed (server.py): end, together with the processes that the plugin has started.
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(0, signal.SIGKILL))
    complete(TorchProfilerPlugin, GOOGLE_CHARTS in sys.argv)
    sys.argv = [word for word in sys.argv if word != GOOGLE_CHARTS]
    run_main()
    return 0


if __name__ == "__main__":  # the plugin's own children import this module, and must not serve
    sys.exit(main())
