"""Measure training steps (``bench.step``): a model's gradients, exchanged as in training."""
