"""Which GPUs, in which order, and what to expect of them. Knows the model; prints nothing."""
