"""A machine with costs from the files that a user names: a topology, a fit, both or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from busbar.errors import ProbeError, Unsupported
from collectives.model import fitfile
from collectives.model.assumed import resolve
from collectives.model.costs import Costs
from collectives.model.machine import one_class, placed, tabled
from collectives.model.measured import costs_of
from collectives.model.predict import Priced
from topology.model.topology import Kind, Topology
from topology.sources.gather import gather


def given(
    topology: Sequence[str] | None, fit: Path | None, nranks: int
) -> tuple[Priced, list[str]]:
    """The machine that files describe, with costs for ``nranks`` ranks, and where those are from.

    Without a topology all ranks are of one class: the nearest that the fit has, or an assumed
    network. Raises Unsupported for files that cannot be used, naming them.
    """
    costs = None if fit is None else fitfile.read(fit).for_ranks(nranks)
    if topology is None:
        return _without_machine(costs, nranks)
    try:
        map_, _ = gather(topology)
        machine = placed(map_)
    except (ProbeError, ValueError) as error:
        named = str(error) if isinstance(error, ProbeError) else f"{topology[0]}: {error}"
        raise Unsupported(f"--topology {named}") from None
    k = len(machine.devices)
    said = [f"ranks are {machine.devices[0]} … {machine.devices[-1]}"]
    if nranks > k:
        said[0] += f", on {-(-nranks // k)} such nodes"
    links, notes = resolve(machine, costs, map_)
    kept = machine.between(nranks)
    notes = [note for i, note in enumerate(notes) if i in kept]
    start, cores = (0.0, ()) if costs is None else (costs.start, costs.cores)
    return Priced(machine, links, start, cores), _lines([*said, *notes], costs)


def _without_machine(costs: Costs | None, nranks: int) -> tuple[Priced, list[str]]:
    if costs is not None:
        return priced_by_fit(costs, nranks)
    machine = one_class()
    links, notes = resolve(machine, None, None)
    return Priced(machine, links), _lines(["no machine given (--topology, --fit)", *notes], None)


def priced_by_fit(costs: Costs, nranks: int) -> tuple[Priced, list[str]]:
    """The machine that was measured, rank for rank; all of its first class where ranks are more."""
    if nranks <= len(costs.table):
        machine = tabled(costs.table, [f"RANK{rank}" for rank in range(len(costs.table))])
    else:
        machine = one_class(next(iter(costs.links)))
    links, notes = resolve(machine, costs, None)
    if len(machine.table) == 1 and len(costs.links) > 1:
        others = ", ".join(list(costs.links)[1:])
        notes.append(f"all ranks taken as {machine.classes[0]}; the fit also has {others}")
    kept = machine.between(nranks) if len(machine.table) > 1 else [0]
    notes = [note for i, note in enumerate(notes) if i in kept or i >= len(machine.classes)]
    return Priced(machine, links, costs.start, costs.cores), _lines(notes, costs)


def _lines(notes: Sequence[str], costs: Costs | None) -> list[str]:
    return ["costs: " + line for line in (*notes, *(costs.notes if costs is not None else ()))]


def fitted(files: Sequence[str]) -> list[Costs]:
    """The costs of measured maps: one a number of ranks; of several maps of as many, one together.

    Raises Unsupported naming the file that has none, or where maps of as many ranks do not go
    together.
    """
    groups: dict[int, list[tuple[str, Topology]]] = {}
    for name in files:
        try:
            topology: Topology = gather([name])[0]
        except ProbeError as error:
            raise Unsupported(str(error)) from None
        groups.setdefault(len(topology.of(Kind.RANK)), []).append((name, topology))
    return [_together(maps) for _, maps in sorted(groups.items())]


def _together(maps: Sequence[tuple[str, Topology]]) -> Costs:
    (name, topology), *others = maps
    for other, again in others:
        for fact in ("transport", "pairs_at_once"):
            if again.get(fact) != topology.get(fact):
                what = f"{fact.replace('_', ' ')} {again.get(fact)}"
                raise Unsupported(f"{other}: {what}, but {topology.get(fact)} in {name}")
    try:
        costs = costs_of(topology, "", *(again for _, again in others))
    except (Unsupported, ValueError) as error:
        raise Unsupported(f"{name}: {error}") from None
    paths = [Path(one) for one, _ in maps]
    digests = [fitfile.digest(path.read_bytes()) for path in paths if path.is_file()]
    return replace(costs, sources=tuple(digests))
