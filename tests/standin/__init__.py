"""A stand-in for an inference engine: real HTTP in its own process, a memory model, real start-up logs, faults."""

from standin.config import Config, Faults
from standin.launch import Standin, start
from standin.memory import FreeMemoryFile

__all__ = ["Config", "Faults", "FreeMemoryFile", "Standin", "start"]
