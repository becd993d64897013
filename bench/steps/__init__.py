"""Training steps: a model's gradients, exchanged as in training; the room of ``bench.step``."""
