"""Timing a row on all ranks: how iterations begin, when a row ends, how times are combined."""
