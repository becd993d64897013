"""Send-receive round a ring."""
