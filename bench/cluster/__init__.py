"""Hosts with names and links with a rate, emulated on one machine; see docs/cluster.md."""
