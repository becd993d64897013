"""The API for Python programs and notebooks: what `busbar` exports, such as run and load."""
