"""The ground floor: what every room needs once. Imports nothing of ours, but for `busbar.cli`."""
