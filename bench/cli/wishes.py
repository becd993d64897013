"""The requirements of a command line on the transports that it opens."""

from __future__ import annotations

from collections.abc import Sequence

from bench.options.options import Options
from bench.options.pairs import TWO_SIDED
from busbar.errors import ProbeError
from collectives.execution.registry import Wishes


def wishes(options: Options) -> Wishes:
    """The options that are transports' own."""
    one_sided = any(choice.name != TWO_SIDED for choice in options.algorithms)
    return Wishes(
        name=options.transport,
        deadline=options.deadline,
        chosen=options.chosen,
        best_gpus=best_gpus,
        gpus=options.gpus,
        asks_for_gpus=options.asks_for_gpus,
        oversubscribe_gpu=options.oversubscribe_gpu,
        pairs=options.pairing is not None,
        reached=options.pairing is not None and one_sided,
    )


def best_gpus(k: int, files: Sequence[str] = ()) -> list[str]:
    """PCI addresses of the k best GPUs of this machine (or of files), in the order of their ring.

    Raises ProbeError where no source answers, or there are fewer.
    """
    from topology.placement.pick import pick as rank
    from topology.sources.gather import gather

    topology, _ = gather(files)
    order = rank(topology, k).picks[0].order
    address = {gpu.id: gpu.busid for gpu in topology.gpus}
    found = [address[gpu] for gpu in order]
    if None in found:
        raise ProbeError("pick", "no source says at which PCI address the GPUs are")
    return [str(bus) for bus in found]
