"""All-to-all: every rank has a part for every other."""
