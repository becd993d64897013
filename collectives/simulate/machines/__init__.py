"""Machines to simulate: the noun, generators, and any `topology.model.topology.Topology`."""
