"""``python -m topology``; its commands are in the table of `topology.commands`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("topology", "busbar.cli:main", "topology")
