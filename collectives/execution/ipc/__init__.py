"""GPUs of one host in each other's memory."""
