"""Pure functions over frozen structs: no I/O, no clock, no unseeded randomness."""
