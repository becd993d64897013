"""Campaigns that look for what the tests do not know: each has a command line, a seed and replays."""
