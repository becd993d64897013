"""Where it moves: devices, links, clocks and placement. Imports nothing of ours."""
