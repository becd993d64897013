"""``python -m busbar`` is the same as ``busbar``."""

from busbar.door import busbar

if __name__ == "__main__":
    busbar()
