"""Which algorithm to take at which size, from measurements or a model; written for others."""
