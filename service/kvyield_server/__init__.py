"""kvyield's service: a ledger of engine starts, the yield model, and the advice."""

__version__ = "0.1.0"
