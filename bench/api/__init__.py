"""The API for Python programs and notebooks: run, load, topology, pick; exported by `busbar`."""
