"""One file per source, each with `read()`, which reads the machine, and a pure `parse(text)`."""
