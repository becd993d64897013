"""Readers of logs: recognise the files of benchmarks and of Busbar, and return their rows."""
