"""What stands in the way of a machine's performance."""
