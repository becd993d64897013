"""Options as keywords of `busbar.run` and `busbar.step`: ``make docs``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from collectives.schedule.schedule import Schedule

Algorithm = str | Callable[..., Schedule]
"""A name as for ``-A``, or a function of a rank count like those in `collectives.algorithms`."""

Sizes = int | str | Iterable[int | str]
"""Bytes, or texts such as ``"64K"``: one, several, or an array."""

DataTypes = str | type | Sequence[str | type]
"""Element types as the command names them, or numpy's scalar types: one or several."""

Collective = Literal[
    "allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast", "gather",
    "hypercube", "reduce", "reduce_scatter", "scatter", "sendrecv",
]  # fmt: skip
"""The collectives that `busbar.run` measures."""

Transport = Literal["inproc", "ipc", "mpi", "nccl", "shm", "shm+mpi"]
"""What moves the bytes of a row."""

Placement = Literal["out", "in"]
"""Whether the result of a row is apart from the input, or overwrites it."""


class OptionKeywords(TypedDict, total=False):
    """Every option that `busbar.run` takes beside its own parameters.

    - ``add_order``: over ipc, the order in which a pass adds the ranks' data. rotated (default):
      the next rank's first, so that ranks read from different GPUs; rank: rank 0's first
      everywhere, so that one_shot gives the same bits on all ranks
    - ``affinity``: pin ranks to a core each, or to the cores of a NUMA node (default none)
    - ``append``: add to the results in out's .jsonl files
    - ``arrival``: let ranks enter late, in microseconds: zero, ramp:US, late:RANK:US, random:US,
      a file (one line per iteration, one number per rank), or all[:US] for a table of the fastest
      algorithm by pattern; the time counts from the last arrival; implies sync window (default
      zero)
    - ``average``: time of an iteration over ranks: 0 rank 0's, 1 average, 2 minimum, 3 maximum
      (default 3)
    - ``blocks``: blocks of 512 threads of a rank over ipc, at most; all (default): as many as are
      resident
    - ``budget``: time limit of a row and placement, without iters (default 2)
    - ``buffers``: with transport mpi: buffers in host memory (default), on the GPU for a
      CUDA-aware MPI (device), or on the GPU and staged through pinned host memory (staged)
    - ``cache``: cold (default): rotate buffers on GPUs, so that none is in the L2 cache; warm:
      one set of buffers
    - ``check``: check the results of N more iterations after the timed ones, as nccl-tests;
      timed: of every timed iteration, outside the clock (default 1)
    - ``counts``: elements from rank (row) to rank
    - ``cudagraph``: 0 is graph off, any other number graph on
    - ``datatype``: int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float, double,
      f8e4m3, f8e5m2; all: without the last two (default float)
    - ``energy``: on GPUs: extend each row to 2 s, untimed, so that its energy can be measured
    - ``gpus``: the GPUs that a node's ranks take, in this order; pick: those that topology pick
      ranks first (default: by node-local rank)
    - ``graph``: launch plans on GPUs as CUDA graphs (default on, where capture works); compare
      measures both ways
    - ``grid``: the grid of algorithms that have one, such as 4x4
    - ``host``: start the ranks of ranks on these hosts, as many on each, by the launcher of this
      MPI, or srun in a Slurm job; Busbar must be at the same path there
    - ``hostfile``: as host; the launcher reads the file
    - ``in_flight``: with transport mpi or shm+mpi: segments of a message that are received at
      once, while one is added (default 2)
    - ``iters``: iterations of a row, not ranks (default: until the median is within 2 % or the
      budget is spent)
    - ``launches``: start the ranks N times, with the rows in another order each time, and show
      the interval over launches (default 1)
    - ``limit``: % of the memory roofline (shm): in the table at the end (default), also in a last
      column, or none, without measuring the roofline
    - ``maxbytes``: largest size (default 1G)
    - ``minbytes``: smallest size (default 1M)
    - ``mpi_threads``: thread level that MPI is started with (default: the lowest that the run
      needs, but multiple if MPICH's ranks share cores)
    - ``ngpus``: GPUs for each of nthreads threads: threads t x g, and an error where there is no
      GPU
    - ``nonblocking``: also measure MPI's non-blocking collective and its overlap with computation
    - ``nthreads``: with ngpus, as in nccl-tests: threads t x g (default 1)
    - ``op``: sum, prod, min, max, avg, all (default sum)
    - ``order``: what is measured first: all sizes of an algorithm (default), or all algorithms at
      a size; then tables are printed after the last size, or when the run is interrupted
    - ``output_file``: write nccl-tests' JSON after every row
    - ``oversubscribe_gpu``: let ranks share a GPU, for tests; otherwise this is refused
    - ``overwrite``: replace the results in the files that are written; without append or this a
      file that has results is refused
    - ``pattern``: to the next rank, or between ranks 0-1, 2-3 … (default ring)
    - ``per_rank``: keep every rank's own times in the records
    - ``placement``: out of place, in place or both (default both)
    - ``root``: root rank of rooted collectives, or all (default 0)
    - ``run_cycles``: run the whole sweep N times, 0 for ever (default 1)
    - ``seed``: seed of the order of rows with launches (default: drawn, and kept in the records)
    - ``segment``: with transport mpi or shm+mpi: bytes of the segments that a message to be added
      is cut into, 0 for none (default 512K)
    - ``spread``: 0 even to 1 by distance, as nccl-tests (default 1)
    - ``statistic``: a row's time is this statistic of its iterations (default median)
    - ``stepbytes``: increment between sizes, instead of a factor
    - ``stepfactor``: factor between sizes (default 2)
    - ``sync``: how iterations begin: behind a barrier (default), or at agreed times of one clock
      (window); with window the time is from the earliest start to the latest end
    - ``threads``: run N ranks as threads of this process, on one or several GPUs or on the host
    - ``timeout``: end a row that makes no progress for so long (default 0: never)
    - ``timing``: time each iteration, or N back to back as nccl-tests does (default each)
    - ``total``: time limit of all rows, cycles and launches together, without iters: where the
      rows would take longer, each gets less, and no row begins after it
    - ``transport``: auto (default): nccl on GPUs, else shm on one host or shm+mpi on several with
      ranks in common, where they are built, else mpi
    - ``tuning``: the choices for algorithms auto, written by busbar tune (default
      busbar-tuning.json)
    - ``wait_quiet``: before the first row of a launch, wait until nothing else uses the cores, at
      most this long; other time limits do not count it
    - ``warmup_iters``: warm-up iterations (default: 1; without iters also all iterations before
      the row is steady)
    """

    add_order: Literal["rotated", "rank"] | None
    affinity: Literal["none", "core", "numa"] | None
    append: bool | None
    arrival: str | Path | None
    average: Literal[0, 1, 2, 3] | None
    blocks: Literal["all", "16", "32", "64", "128", "256"] | None
    budget: float | str | None
    buffers: Literal["host", "device", "staged"] | None
    cache: Literal["cold", "warm"] | None
    check: bool | int | Literal["timed"] | None
    counts: str | Path | None
    cudagraph: int | None
    datatype: DataTypes | None
    energy: bool | None
    gpus: int | str | Sequence[int | str] | None
    graph: Literal["on", "off", "compare"] | None
    grid: str | None
    host: str | Sequence[str] | None
    hostfile: str | Path | None
    in_flight: int | None
    iters: int | None
    launches: int | None
    limit: Literal["table", "column", "none"] | None
    maxbytes: int | str | None
    minbytes: int | str | None
    mpi_threads: Literal["single", "funneled", "serialized", "multiple"] | None
    ngpus: int | None
    nonblocking: bool | None
    nthreads: int | None
    op: str | Sequence[str] | None
    order: Literal["algorithm", "size"] | None
    output_file: str | Path | None
    oversubscribe_gpu: bool | None
    overwrite: bool | None
    pattern: Literal["ring", "pairs"] | None
    per_rank: bool | None
    placement: Literal["out", "in", "both"] | None
    root: int | Literal["all"] | None
    run_cycles: int | None
    seed: int | None
    segment: int | str | None
    spread: float | None
    statistic: Literal["median", "mean"] | None
    stepbytes: int | str | None
    stepfactor: float | None
    sync: Literal["barrier", "window"] | None
    threads: int | None
    timeout: float | str | None
    timing: Literal["each", "loop"] | None
    total: float | str | None
    transport: Literal["auto", "inproc", "ipc", "mpi", "nccl", "shm", "shm+mpi"] | None
    tuning: str | Path | None
    wait_quiet: float | str | None
    warmup_iters: int | None


class Keywords(OptionKeywords, total=False):
    """Every keyword of `busbar.run` but ``collective``, for functions that pass them on."""

    ranks: int | str | Sequence[int] | None
    algorithms: Algorithm | Sequence[Algorithm] | None
    sizes: Sizes | None
    dtype: DataTypes | None
    out: str | Path | Sequence[str | Path] | None
    launcher: str | None
    progress: bool | None


class StepOptionKeywords(TypedDict, total=False):
    """Every option that `busbar.step` takes beside its own parameters.

    - ``affinity``: pin ranks to a core each, or to the cores of a NUMA node (default none)
    - ``append``: add to the results in out's .jsonl files
    - ``batch``: samples per rank and step, for samples/s (default 32)
    - ``budget``: time limit of an update's steps, at least 6, without iters (default 5)
    - ``compress``: compressions of gradients, joined by commas: none (default), fp16, bf16; for
      updates that send a gradient once (one_shot, ps, sharded_ps, parameter servers) also int8,
      1bit, topk:fraction=0.01
    - ``compute_by``: sleep (default): the core is free, as when an accelerator computes; burn:
      the core is busy
    - ``cycle``: as Horovod: at this interval, such as 5ms, fill buffers of fusion SIZE with the
      gradients that are ready
    - ``fit``: predict with these costs (busbar collectives fit)
    - ``fusion``: bucket sizes: ddp (default) as PyTorch's DistributedDataParallel, the first of
      1M and the others of 25M; ddp:FIRST,REST, one SIZE, none or all
    - ``host``: start the ranks of ranks on these hosts, as many on each, by the launcher of this
      MPI, or srun in a Slurm job; Busbar must be at the same path there
    - ``hostfile``: as host; the launcher reads the file
    - ``iters``: iterations of a row, not ranks (default: until the median is within 2 % or the
      budget is spent)
    - ``mpi_threads``: thread level that MPI is started with (default: the lowest that the run
      needs, but multiple if MPICH's ranks share cores)
    - ``overlap``: on (default): exchange during the backward pass; off: after it; on,off: measure
      both, and say how much overlap buys
    - ``overwrite``: replace the results in the files that are written; without append or this a
      file that has results is refused
    - ``per_rank``: keep every rank's own times in the records
    - ``precision``: the gradients' type (default fp32)
    - ``problem``: train softmax or network (network:hidden=64:features=32:samples=4096) with real
      gradients, instead of exchanging those of a model
    - ``rate``: learning rate (default 0.1)
    - ``rule``: learning-rate rule: fixed (default), staleness (rate over the mean staleness),
      distance:c=1 (c over the squared distance from the weights that were read, at most rate),
      adagrad
    - ``scale``: exchange 1/F of every tensor, as if links were F times as fast (default 1)
    - ``seed``: seed of all random numbers (default 0)
    - ``servers``: with a parameter server (sync, async …): the first S ranks serve a part of the
      weights each, the others learn (default 1)
    - ``straggler``: a rank whose compute takes F times as long; repeatable
    - ``threads``: run N ranks as threads of this process, on one or several GPUs or on the host
    - ``timeout``: end a row that makes no progress for so long (default 0: never)
    - ``topology``: predict for the machine that these files map
    - ``trace``: write a timeline for Perfetto or chrome://tracing; for one update only
    - ``transport``: auto (default): nccl on GPUs, else shm on one host or shm+mpi on several with
      ranks in common, where they are built, else mpi
    - ``tuning``: the choices for update auto (default busbar-tuning.json)
    - ``wait_quiet``: before the first row of a launch, wait until nothing else uses the cores, at
      most this long; other time limits do not count it
    - ``warmup_iters``: warm-up steps (default 1)
    """

    affinity: Literal["none", "core", "numa"] | None
    append: bool | None
    batch: int | None
    budget: float | str | None
    compress: str | Sequence[str] | None
    compute_by: Literal["sleep", "burn"] | None
    cycle: float | str | None
    fit: str | Path | None
    fusion: str | None
    host: str | Sequence[str] | None
    hostfile: str | Path | None
    iters: int | None
    mpi_threads: Literal["single", "funneled", "serialized", "multiple"] | None
    overlap: Literal["on", "off", "on,off"] | Sequence[Literal["on", "off"]] | None
    overwrite: bool | None
    per_rank: bool | None
    precision: Literal["fp32", "fp16", "bf16"] | None
    problem: str | None
    rate: float | None
    rule: str | None
    scale: float | None
    seed: int | None
    servers: int | None
    straggler: str | Sequence[str] | None
    threads: int | None
    timeout: float | str | None
    topology: str | Path | Sequence[str | Path] | None
    trace: str | Path | None
    transport: Literal["auto", "inproc", "ipc", "mpi", "nccl", "shm", "shm+mpi"] | None
    tuning: str | Path | None
    wait_quiet: float | str | None
    warmup_iters: int | None


class StepKeywords(StepOptionKeywords, total=False):
    """Every keyword of `busbar.step` but ``model``, for functions that pass them on."""

    ranks: int | str | Sequence[int] | None
    update: str | Sequence[str] | None
    compute: str | None
    launches: int
    out: str | Path | Sequence[str | Path] | None
    launcher: str | None
    progress: bool | None
