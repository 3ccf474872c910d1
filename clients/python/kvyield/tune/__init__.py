"""The closed loop of ``kvyield tune``: restart, measure, verify, until the target is verified."""
