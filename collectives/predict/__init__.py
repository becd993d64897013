"""Predicted times of collectives: machines, and predictors over them. Measures nothing."""
