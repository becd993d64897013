"""Measure updates by parameter servers: protocols, formulas, messages, loops, reports."""
