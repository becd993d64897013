"""The data types: a measured result, a row of any source, and the formats of their values."""
