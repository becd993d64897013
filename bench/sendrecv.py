"""Measure send-receive: ``mpirun -n 16 python -m bench.sendrecv --pattern ring``."""

from bench.doors import door

if __name__ == "__main__":
    door("sendrecv")
