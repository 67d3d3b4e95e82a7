"""Training scripts with a bottleneck planted in them, put together from parts (see ``cases``)."""
