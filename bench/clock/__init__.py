"""One clock for all ranks: exchanges, a line a host, and what a rank reads."""
