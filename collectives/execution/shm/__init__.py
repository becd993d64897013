"""The transport for ranks of one node, over memory that all of them map."""
