"""``python -m bench.cluster``: run a command over hosts and links emulated on this machine."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "cluster")
