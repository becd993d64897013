"""Readers of logs: files of benchmarks and of Busbar are recognised and become rows."""
