"""What people look at: the matrix, the tree and the picture. Functions to text; nothing prints."""
