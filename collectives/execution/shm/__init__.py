"""Ranks of one node, over memory that all of them map."""
