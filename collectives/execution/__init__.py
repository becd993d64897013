"""How a schedule is run: lowered to one rank's program, which a transport executes."""
