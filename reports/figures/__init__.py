"""Figures for print and slides."""
