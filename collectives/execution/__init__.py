"""How it runs: a schedule lowered to one rank's program, and the transports that carry it out."""
