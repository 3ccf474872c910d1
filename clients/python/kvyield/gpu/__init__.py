"""The GPUs of this host: what they are, what is free on them, and how low that falls while something runs."""

from kvyield.gpu._find import find_gpus
from kvyield.gpu._gpu import Gpu, GpuError, GpuProcess, hardware_name
from kvyield.gpu._readers import FreeReader, open_reader
from kvyield.gpu._sampler import MemorySampler, MemorySamples

__all__ = [
    "FreeReader",
    "Gpu",
    "GpuError",
    "GpuProcess",
    "MemorySampler",
    "MemorySamples",
    "find_gpus",
    "hardware_name",
    "open_reader",
]
