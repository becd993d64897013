"""From a command line to an exit status."""
