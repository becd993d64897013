"""Hypercube: an all-gather along a hypercube's dimensions."""
