"""One clock for all ranks: clock exchanges, a linear model for each host, and reading it."""
