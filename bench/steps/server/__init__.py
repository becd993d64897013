"""Parameter servers and their learners: protocols, formulas, messages."""
