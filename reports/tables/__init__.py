"""Tables for terminals and Markdown."""
