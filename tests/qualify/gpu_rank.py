"""A rank of a qualification's launch on stand-in GPUs: ``gpu_rank GPUS TASK…``."""

from __future__ import annotations

import sys

from bench.qualify.measures import measure
from bench.qualify.task import Task
from bench.qualify.worker import send
from tests.bench.cli.gpu_process import stand_in

if __name__ == "__main__":
    stand_in(int(sys.argv[1]))
    measure(Task.parse(sys.argv[2:]), send)
