"""What every test can rely on."""

import signal

# A shell that starts the tests in the background makes them, and so every child, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
