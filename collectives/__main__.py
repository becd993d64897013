"""``python -m collectives``; the command itself is in `collectives.cli`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("collectives", "collectives.cli:main")
