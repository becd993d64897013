"""Simulation: what a schedule takes on a machine whose links are shared; see docs/simulation.md."""
