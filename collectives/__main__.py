"""``busbar collectives``; its commands are in the table of `collectives.commands`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("collectives", "busbar.cli:main", "collectives")
