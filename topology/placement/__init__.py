"""Choice and order of GPUs, and their expected bandwidth. Uses only the model; prints nothing."""
