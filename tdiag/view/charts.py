"""TensorBoard's own program, with one change to torch-tb-profiler's page, so that it works offline.

That page asks the internet for Google Charts and, without an answer, shows nothing at all: not
even the tables, the recommendations and the trace viewer, which need no chart. Here charts that
did not come are charts that draw nothing.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

LOADER = b'<script src="https://www.gstatic.com/charts/loader.js"></script>'
# Whatever is asked of it, called or made anew, it is itself again; as text it is nothing.
NOTHING = b"""<script>
if (!window.google) {
  const nothing = new Proxy(function () {}, {
    get: (_, key) => key === Symbol.toPrimitive ? () => "" : key === "then" ? undefined : nothing,
    apply: () => nothing, construct: () => nothing, set: () => true,
  });
  window.google = {charts: {load: async () => {}}, visualization: nothing};
}
</script>"""


def soften(plugin: Any) -> None:
    """Make the plugin (its class) serve its page with the replacement behind Google's loader."""
    from werkzeug import Response

    original = plugin.static_file_route

    def route(self: Any, environ: Any, start: Any) -> Any:
        response = Response.from_app(partial(original, self), environ)
        if environ["PATH_INFO"].endswith("/index.html"):
            response.set_data(response.get_data().replace(LOADER, LOADER + NOTHING))
        return response(environ, start)

    plugin.static_file_route = route


def main() -> int:
    """Takes TensorBoard's arguments."""
    from tensorboard.main import run_main
    from torch_tb_profiler.plugin import TorchProfilerPlugin

    soften(TorchProfilerPlugin)
    run_main()
    return 0


if __name__ == "__main__":  # the plugin's own children import this module, and must not serve
    sys.exit(main())
