"""Other programs' formats: MSCCL XML (read and written), MSCCL++ (read), GOAL, Chakra (written)."""
