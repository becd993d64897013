"""What is trained for real: problems, the rules of an update, and what a gradient is on the wire.

Pure: vectors in, vectors out. Ranks, messages and clocks are not known here.
"""
