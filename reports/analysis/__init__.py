"""The questions that rows answer: who is faster, who is slow, what should it have been."""
