"""The ground floor: what every room needs once.

Imports nothing of ours; `busbar.cli` loads the rooms by name.
"""
