"""Campaigns that look for what tests do not know: each has a command, a seed and replays."""
