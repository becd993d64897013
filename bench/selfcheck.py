"""Check Busbar itself: ``python -m bench.selfcheck``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "selfcheck")
