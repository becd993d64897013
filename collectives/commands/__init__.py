"""The commands of ``python -m collectives``, a module each; `collectives.cli` has the table."""
