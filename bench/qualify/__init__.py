"""Qualify a cluster: find bad hosts, links and uplinks, with the launches that show it."""
