"""Barrier: no rank continues before every rank has arrived."""
