"""The data types: records, rows of any source, and rows as columns."""
