"""The GPUs of this host: what they are, what is free on them, and how low that falls while something runs."""

from kvyield.gpu._card import Card, GpuError, Neighbour, hardware_name
from kvyield.gpu._find import cards
from kvyield.gpu._readers import FreeReader, open_reader
from kvyield.gpu._sampler import MemorySampler, MemorySamples

__all__ = [
    "Card",
    "FreeReader",
    "GpuError",
    "MemorySampler",
    "MemorySamples",
    "Neighbour",
    "cards",
    "hardware_name",
    "open_reader",
]
