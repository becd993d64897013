"""See what is here and what a run would take: ``python -m bench.doctor``, ``busbar doctor``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "doctor")
