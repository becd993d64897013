"""The best algorithm for each size, from measurements or a model, and files for other programs."""
