"""One file a transport: the data planes that a program can run on."""
