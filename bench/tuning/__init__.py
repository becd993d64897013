"""Tuning: the fastest algorithm for each size, and files of choices for other programs."""
