"""kvyield's thin client: reads an engine's log, measures GPU memory, posts engine starts, asks for memory flags."""

__version__ = "0.1.0"
