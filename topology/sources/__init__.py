"""One file a source, each with `read()`, which touches the machine, and a pure `parse(text)`."""
