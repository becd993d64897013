"""A machine as data: devices, links, facts, and what follows from them."""
