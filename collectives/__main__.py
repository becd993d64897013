"""``python -m collectives``: schedules for people to see, prove and cost."""

import sys

from collectives.cli import main
from collectives.process import serve

if __name__ == "__main__":
    sys.exit(serve("collectives", main))
