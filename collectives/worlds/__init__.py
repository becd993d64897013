"""One file a world: the control planes that ranks meet on."""
