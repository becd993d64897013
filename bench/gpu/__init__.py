"""Transports that move GPU memory: opened by all ranks together."""
