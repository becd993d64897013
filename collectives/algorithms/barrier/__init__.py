"""Barrier: no rank goes on before every rank has arrived."""
