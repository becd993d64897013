"""Training steps: a model's gradients exchanged as training exchanges them; ``bench.step``'s room."""
