"""``python -m bench.qualify``: which hosts, links and uplinks of a cluster are good."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "qualify")
