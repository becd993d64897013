"""How collectives grow with the number of hosts: measured, by the textbook, and simulated."""
