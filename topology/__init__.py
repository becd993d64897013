"""Map the hardware: devices, links, clocks and placement. Of our packages imports only busbar."""
