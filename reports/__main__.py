"""``python -m reports``: read, show, compare, plot."""

import sys

from reports.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
