"""``python -m reports``; its commands are in the table of `reports.commands`."""

from busbar.door import leave

if __name__ == "__main__":
    leave("reports", "busbar.cli:main", "reports")
