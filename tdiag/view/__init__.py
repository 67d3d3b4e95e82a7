"""Converts a run or a trace for other viewers: TensorBoard with the torch-tb-profiler plugin,
Perfetto and chrome://tracing, speedscope. One file per format. Unlike the reports, these show the
profilers' data, not only the diagnosis."""
