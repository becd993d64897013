"""Check what a run needs here: ``python -m bench.doctor``, ``busbar doctor``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "doctor")
