"""Measure training with parameter servers: protocols, formulas, messages, loops, reports."""
