"""Advice: from a question about a fitted deployment to the flags to restart with, or to keep."""
