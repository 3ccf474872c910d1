"""Stands in for SGLang's package, so that ``python -m sglang.launch_server`` is a command line as it is typed."""
