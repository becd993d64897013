"""Predicted times of schedules, from fitted link costs.

`costs` holds the parameters, `fitting` finds them, `measured` reads what `topology measure --sweep`
saved, `machine` says which link two ranks have between them, `predict` walks a schedule, `nccl` is
NCCL's own published model. Nothing here runs or measures anything.
"""
