"""Text and pictures of a map for people: matrix, tree, picture. Functions return text."""
