"""Updates: each module makes ranks' gradients one update; `bench.steps.table` names them."""
