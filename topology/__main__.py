"""Run ``python -m topology``; `topology.commands` has the table of its commands."""

from busbar.door import leave

if __name__ == "__main__":
    leave("topology", "busbar.cli:main", "topology")
