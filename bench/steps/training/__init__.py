"""Real training: problems, update rules, and codes of gradients on the wire.

Pure: vectors in, vectors out; no ranks, messages or clocks.
"""
