"""One file a source, each with `read()`, which touches the machine, and `parse(text)`, which is pure."""
