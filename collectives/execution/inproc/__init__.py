"""Ranks that are threads of one process: their `World` (control messages) and their transport."""
