"""Foreign formats: MSCCL XML in and out (read, prove, convert, write); GOAL and Chakra out."""
