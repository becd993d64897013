"""``python -m busbar`` is ``busbar``."""

import sys

from busbar.cli import main

if __name__ == "__main__":
    sys.exit(main())
