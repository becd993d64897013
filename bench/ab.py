"""Compare two commands, settings or builds, interleaved: ``python -m bench.ab -- A… -- B…``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "ab")
