"""Real training: problems, update rules, and codecs that compress gradients.

The modules compute with vectors only: they use no ranks, messages or clocks.
"""
