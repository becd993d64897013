"""``python -m reports``: read, show, compare, plot."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    try:
        from reports.cli import main

        if sys.stdout is None:  # closed by whoever started us: `>&-`
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("reports: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
