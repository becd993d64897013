"""The nouns: a measured result, a row of any source, and how their values are written."""
