"""Diagnostics: what costs a machine performance."""
