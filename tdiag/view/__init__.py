"""What a run or a trace is turned into for other people's viewers: TensorBoard with the
torch-tb-profiler plugin, Perfetto and chrome://tracing, speedscope. One file a format; unlike
the reports, these show what the profilers saw, not the diagnosis alone."""
