"""A machine as data: devices, links, facts, and what is computed from them."""
