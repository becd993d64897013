"""Pairs of ranks timed: what ``python -m topology measure`` runs."""
