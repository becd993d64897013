"""For Python programs and notebooks: run, load, map and pick; `busbar` has the names."""
