"""``python -m reports``; the command itself is in `reports.cli`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("reports", "reports.cli:main")
