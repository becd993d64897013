"""Updates: each module makes ranks' gradients one update; `bench.steps.job` names them."""
