"""How ranks' gradients become one update: a module a way; `bench.steps.table` names them."""
