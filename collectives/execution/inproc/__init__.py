"""The transport and world for ranks that are threads of one process."""
