"""Training steps: a model's gradients, exchanged as training does; ``bench.step``'s room."""
