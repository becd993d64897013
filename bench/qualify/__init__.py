"""Qualify a cluster: which hosts, links and uplinks are good, with the launches that show it."""
