"""``python -m collectives``: schedules for people to see, prove and cost."""

import sys

from collectives.cli import main

if __name__ == "__main__":
    sys.exit(main())
