"""Readers of engine logs and endpoints, one file an engine."""

from kvyield.engines._read import read_starts
from kvyield.engines._start import Sourced, Start

__all__ = ["Sourced", "Start", "read_starts"]
