"""``python -m topology``; the command itself is in `topology.cli`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("topology", "topology.cli:main")
