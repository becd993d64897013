"""Choice and order of GPUs, and their expected bandwidth. Knows the model; prints nothing."""
