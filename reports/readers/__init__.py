"""Readers of logs: nccl-tests, OSU, IMB and Busbar's files are recognised and become rows."""
