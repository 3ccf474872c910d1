"""Verification: a long prompt sent to a running engine, its answer checked and GPU memory sampled meanwhile."""

from kvyield.verify._gpus import engine_gpus, is_on_this_host
from kvyield.verify._order import OnResult, Order, Progress, Report
from kvyield.verify._result import Verified
from kvyield.verify._run import verify
from kvyield.verify._server import Server, find_server

__all__ = [
    "OnResult",
    "Order",
    "Progress",
    "Report",
    "Server",
    "Verified",
    "engine_gpus",
    "find_server",
    "is_on_this_host",
    "verify",
]
