"""Which algorithm to take at which size: decided from measurements or a model, written for others."""
