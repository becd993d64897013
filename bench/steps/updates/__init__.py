"""How ranks' gradients become one update, a module each; `bench.steps.table` names them."""
