"""How collectives' times grow with the number of hosts: measured, textbook, and simulated."""
