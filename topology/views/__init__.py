"""Views for people: matrix, tree and picture. Functions return text; nothing prints."""
