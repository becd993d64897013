"""Simulated times of schedules on machines with shared links; see docs/simulation.md."""
