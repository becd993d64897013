"""``--dry-run``: what would run, what it would take and move; nothing is allocated or started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.catalogue import Chosen
from bench.memory import SHARE, free_memory
from bench.options import Options
from bench.sizes import human
from collectives.cost import cost
from collectives.dtypes import dtype
from collectives.layout import Layout
from collectives.moves import Buffer
from collectives.program import lower
from collectives.spec import Collective

__all__ = ["dry_run"]


def dry_run(
    spec: Collective, options: Options, chosen: Sequence[Chosen], notes: Sequence[str], nranks: int
) -> Iterator[str]:
    """The lines to print, for all ranks on this one host."""
    free = int(free_memory() * SHARE)
    yield f"# dry run: {spec.name} on {nranks} ranks of this host, which has {human(free)} to give"
    yield from (f"# {note}" for note in notes)
    yield f"# op {','.join(options.ops)}  type {','.join(options.dtypes)}" + (
        f"  {options.iterations} iterations"
        if options.iterations
        else f"  iterations until precise, at most {options.budget:g} s a row and placement"
    )
    head = f"# {'algorithm':>22} {'steps':>5} {'size':>10} {'place':>5} {'memory':>10}"
    yield head + f" {'busiest out':>12} {'busiest in':>12}"
    for one in chosen:
        yield from _algorithm(spec, options, one, nranks, free)


def _algorithm(
    spec: Collective, options: Options, chosen: Chosen, nranks: int, free: int
) -> Iterator[str]:
    steps = "" if chosen.schedule is None else str(cost(chosen.schedule).steps)
    for kind in options.dtypes:
        itemsize = dtype(kind).itemsize
        for size in options.sizes:
            elements = size // itemsize
            for placement in options.placements:
                need = _need(spec, options, chosen, nranks, elements, itemsize, placement == "in")
                out, into = "unknown", "unknown"
                if chosen.schedule is not None:
                    sent, got = chosen.traffic(elements, itemsize, options.root)
                    out, into = f"{sent} B", f"{got} B"
                fits = "" if need <= free else "  would be skipped: does not fit"
                yield (
                    f"  {chosen.label:>22} {steps:>5} {human(size):>10} {placement:>5}"
                    f" {human(need):>10} {out:>12} {into:>12}{fits}"
                )


def _need(
    spec: Collective,
    options: Options,
    chosen: Chosen,
    nranks: int,
    elements: int,
    itemsize: int,
    in_place: bool,
) -> int:
    """Bytes of all ranks' buffers and scratch; a transport's staging comes on top."""
    chunks = spec.parts(nranks) if chosen.schedule is None else chosen.schedule.nchunks
    layout = Layout(spec, nranks, chunks, options.root)
    total = 0
    for rank in range(nranks):
        own = [layout.elements(rank, b, elements) for b in (Buffer.IN, Buffer.OUT)]
        scratch = 0
        if chosen.schedule is not None:
            program = lower(chosen.schedule, layout, rank, elements, in_place=in_place)
            scratch = program.elements[Buffer.SCRATCH]
        total += (max(own) if in_place else sum(own)) + scratch
    return total * itemsize
