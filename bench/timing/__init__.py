"""Timing a row on all ranks: how its iterations begin, when it ends, and what its times are."""
