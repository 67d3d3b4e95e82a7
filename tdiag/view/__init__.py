"""A run or a trace, converted for other viewers: TensorBoard with the torch-tb-profiler plugin,
Perfetto and chrome://tracing, speedscope. One file a format; unlike the reports, these show the
profilers' data, not only the diagnosis."""
