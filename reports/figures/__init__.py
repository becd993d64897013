"""Figures for print and slides, drawn by matplotlib."""
