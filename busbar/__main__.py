"""``python -m busbar`` is ``busbar``."""

from busbar.door import busbar

if __name__ == "__main__":
    busbar()
