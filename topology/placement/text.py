"""A ranking as text for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from math import factorial

import numpy as np

from busbar.terminal import make_lines_printable, wrap_line
from busbar.units import format_count, format_rate, one_decimal
from topology.diagnostics import check, flat
from topology.model.graph import Hop
from topology.model.rates import assumed_model, nvlink, published
from topology.placement.pick import Objective, Pick, Ranking, Tier
from topology.placement.rings import EXACT_LIMIT, Grid, count_rings
from topology.placement.routes import GpuRoute, GpuRoutes

_PATTERN = {
    Objective.RING: "hops of the ring",
    Objective.PAIRS: "routes between the pairs",
    Objective.ALL_TO_ALL: "routes between all of them",
}


def short(ids: Iterable[str]) -> str:
    """``[0,1,4]`` for GPU0, GPU1, GPU4; other ids unchanged."""
    ids = tuple(ids)
    numbered = all(id.startswith("GPU") and id[3:].isdecimal() for id in ids)
    return f"[{','.join(id[3:] if numbered else id for id in ids)}]"


def rate(value: float) -> str:
    """Bytes per second as text: ``12.0 GB/s``, ``0.0250 GB/s`` for a slow network port."""
    return f"{format_rate(value, one_decimal)} GB/s"


def hop_words(hop: Hop) -> str:
    """A hop as text: ``GPU0 → PCIE0, PCIe x16, 12.0 GB/s``."""
    names = {"cpu": "between CPUs", "c2c": "chip to chip", "measured": "as measured"}
    kind = {**names, "pcie": f"PCIe x{hop.count}"}.get(hop.kind, format_count(hop.count, "NVLink"))
    return f"{hop.a} → {hop.b}, {kind}, {rate(hop.bandwidth)}{' (assumed)' if hop.assumed else ''}"


def reasons(ranking: Ranking) -> tuple[str, ...]:
    """Why the first pick is first: its routes, its bottleneck, the loss by the next best tier."""
    best = ranking.picks[0]
    if len(best.gpus) == 1:
        return (
            "one GPU talks to none: what check finds, nearness to a NIC and the index decided",
            *_warnings(ranking.pool, best),
        )
    hidden = bool(flat(ranking.pool.topology))
    texts = [_uses(best, ranking.objective), *_bound(best, ranking.objective, hidden)]
    if ranking.objective is Objective.RING and len(best.gpus) >= 3:
        texts += _nvlink_rings(ranking.pool, best)
    if len(ranking.tiers) > 1:
        texts.append(_versus(best, ranking.tiers[1].best))
    texts += _warnings(ranking.pool, best)
    return tuple(texts)


def _bottleneck_words(hop: Hop, hidden: bool) -> str:
    """The bottleneck as text. ``hidden``: the source hides the PCIe tree, so the hop is a guess."""
    if hidden and hop.kind == "cpu":
        unknown = "the path is unknown, for the source hides the PCIe tree"
        return f"{unknown}; {rate(hop.bandwidth)} (assumed)"
    return hop_words(hop)


def _counted(pick: Pick) -> Counter[GpuRoute]:
    pairs = {frozenset((a, b)): route for a, b, route in pick.routes}
    return Counter(_class(route) for route in pairs.values())


def _class(route: GpuRoute) -> GpuRoute:
    """The route without what does not matter to the pattern, so that similar ones are equal."""
    level = None if route.nvlinks else route.level
    return GpuRoute(route.text, route.bandwidth, level, route.nvlinks, route.p2p, ())


def _uses(pick: Pick, objective: Objective) -> str:
    counted = sorted(_counted(pick).items(), key=lambda item: item[0].key)
    if len(counted) == 1:
        route, number = counted[0]
        one = f"{pick.gpus[0]} and {pick.gpus[-1]}: {route.words}"
        count = "both" if number == 2 else f"all {number}"
        return f"{count} {_PATTERN[objective]}: {route.words}" if number > 1 else one
    return f"{_PATTERN[objective]}: " + "; ".join(f"{n} x {route.words}" for route, n in counted)


def _bound(pick: Pick, objective: Objective, hidden: bool) -> list[str]:
    narrow = pick.bottleneck
    if narrow is None:
        return []
    shared = f", shared by {narrow.flows} flows" if narrow.flows > 1 else ""
    texts = [f"bottleneck: {_bottleneck_words(narrow.hop, hidden)}{shared}"]
    if pick.rings and pick.busbw > pick.single:
        per_link = pick.busbw / (2 * len(pick.rings))
        texts.append(
            f"{format_count(len(pick.rings), 'ring')} side by side, each on"
            f" NVLinks of its own, both directions, {rate(per_link)} each way: {rate(pick.busbw)}; "
            f"one ring alone, one way: {rate(pick.single)}"
        )
    elif objective is Objective.ALL_TO_ALL:
        texts.append(f"every flow gets {rate(pick.single)}, times {len(pick.gpus) - 1} peers")
    return texts


def _nvlink_rings(routes: GpuRoutes, best: Pick) -> list[str]:
    """How rare rings of NVLinks are: among the sets, and among the orders of this set."""
    size, k = len(routes.ids), len(best.gpus)
    if size > EXACT_LIMIT:
        return []
    linked = np.array(
        [[i != j and routes.between(i, j).nvlinks > 0 for j in range(size)] for i in range(size)]
    )
    if not linked.any():
        return []
    masks, counts = count_rings(linked, k)
    members = [routes.ids.index(id) for id in best.gpus]
    here = int(counts[masks == sum(1 << at for at in members)][0])
    orders = factorial(k - 1) // 2
    texts = []
    if len(masks) > 1:
        held = int((counts > 0).sum())
        if held < len(masks):
            texts.append(f"{held} of {len(masks)} sets of {k} hold a ring of NVLinks")
    if not here:
        texts.append("no order of these GPUs stays on NVLink")
    elif here < orders:
        off = [
            f"{routes.ids[a]}→{routes.ids[b]}"
            for a, b in zip(members, [*members[1:], members[0]], strict=True)
            if not linked[a, b]
        ]
        note = f"index order does not ({', '.join(off)})" if off else "index order is one of them"
        texts.append(f"{here} of {orders} orders of these GPUs stay on NVLink; {note}")
    return texts


def _versus(best: Pick, other: Pick) -> str:
    lead = f"{short(best.gpus)} beats {short(other.gpus)}"
    ours, theirs = _counted(best), _counted(other)
    more = sorted(
        (route for route in theirs if theirs[route] > ours.get(route, 0)),
        key=lambda route: route.key,
    )
    what = ""
    if more:
        route = more[-1]
        pair = next((a, b) for a, b, w in other.routes if _class(w) == route)
        what = f" {theirs[route]} x {route.words} ({pair[0]}-{pair[1]})"
    if round(other.busbw / 1e6) != round(best.busbw / 1e6):
        fewer = (
            f"; {len(other.rings)} of {len(best.rings)} rings side by side"
            if len(other.rings) != len(best.rings)
            else ""
        )
        using = f" with{what}" if what else ""
        return f"{lead}, which promises {rate(other.busbw)} of {rate(best.busbw)}{using}{fewer}"
    return f"{lead}, which uses{what or ' no better routes'}; by link rates both promise the same"


def _warnings(routes: GpuRoutes, best: Pick) -> list[str]:
    gpus = [routes.topology.device(id) for id in best.gpus]
    models = sorted({str(gpu.get("model") or gpu.name) for gpu in gpus} - {""})
    texts = [f"mixed models: {', '.join(models)}"] if len(models) > 1 else []
    texts += [
        f"check says of {', '.join(sorted(set(best.gpus) & set(finding.subjects)))}: "
        f"{finding.summary}"
        for finding in check(routes.topology)
        if set(best.gpus) & set(finding.subjects) and finding.code != "mixed-models"
    ]
    mig = [gpu.id for gpu in gpus if gpu.get("mig") is True]
    if mig:
        texts.append(f"MIG mode is on for {', '.join(mig)}: no P2P between its instances")
    texts += _nvlinks_left_out(routes, best, models)
    if best.assumed and best.bottleneck:
        texts.append(_assumption(best.bottleneck.hop, routes.topology.graph.most_nvlinks))
    return texts


def _assumption(hop: Hop, nvlinks: int) -> str:
    """What is assumed of the link that decides; ``nvlinks``: the most of a GPU."""
    if hop.kind == "nvlink":
        model = assumed_model(nvlinks)
        return (
            f"no source states the model of the GPUs: NVLinks of {model} are assumed, the oldest"
            f" with as many a GPU, {rate(hop.bandwidth / hop.count)} a link (the newest carries"
            f" {rate(nvlink(100))}); --model names another, such as --model B200"
        )
    what = "the PCIe of its model, or else gen3 x16," if hop.kind == "pcie" else rate(hop.bandwidth)
    return f"the source does not state the link that decides; {what} is assumed"


def _nvlinks_left_out(routes: GpuRoutes, best: Pick, models: Sequence[str]) -> list[str]:
    """A warning if the map may lack NVLinks that the GPUs have, so that figures are too low."""
    gpus = [routes.topology.device(id) for id in best.gpus]
    sources = [source.lower() for source in routes.topology.sources]
    # A matrix of topo -m has NV# where there are NVLinks, one of topo -mp has none.
    untold = any(gap.call == "nvlinks" for gap in routes.topology.gaps)
    matrix = "topo -m" in sources and not untold
    stated = any(gpu.get("nvlinks") is not None for gpu in gpus) or matrix
    if len(gpus) == 1 or stated or any(route.nvlinks for _, _, route in best.routes):
        return []
    boards = [model for model in models if (known := published(model)) and known.nvlinks]
    lack = "no source states NVLinks: figures are too low"
    if boards:
        return [f"{lack}, for {', '.join(boards)} has them; add the text of nvidia-smi topo -m"]
    if not models and (untold or any("nccl" in source for source in sources)):
        which = "topo -mp leaves" if untold else "files that NCCL reads leave"
        return [f"{lack} if these GPUs have them, for {which} them out"]
    return []


_SHOWN = 12


def text(ranking: Ranking, width: int = 80) -> str:
    """The best pick with its reasons, the alternatives and the tiers of all sets, wrapped."""
    best = ranking.picks[0]
    how = "all of them rated" if ranking.exact else "a bounded search, better ones may exist"
    sets = "set" if ranking.choices == 1 else "sets"
    lines = [
        f"best {len(best.gpus)} for {ranking.objective.value}: {short(best.gpus)}"
        f"   ({ranking.choices} {sets}, {how})",
        "  CUDA_DEVICE_ORDER=PCI_BUS_ID "
        f"CUDA_VISIBLE_DEVICES={','.join(id.removeprefix('GPU') for id in best.order)}",
    ]
    lines += _details(best, ranking.objective)
    lines += [f"  - {reason}" for reason in reasons(ranking)]
    if len(ranking.picks) > 1:
        lines += ["", "ranked:"]
        room = max(len(short(pick.gpus)) for pick in ranking.picks)
        lines += [
            f"  {place}. {short(pick.gpus):{room}}  {_promise(pick)}  {_routes_used(pick)}"
            for place, pick in enumerate(ranking.picks, 1)
        ]
    if len(ranking.tiers) > 1:
        lines += ["", "tiers:"]
        lines += [f"  {_tier(tier)}" for tier in ranking.tiers]
    return make_lines_printable(
        "\n".join(row for line in lines for row in _wrapped(line, width)) + "\n"
    )


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line; continued lines are indented by two more columns."""
    return wrap_line(line, width, len(line) - len(line.lstrip(" ")) + 2) or [""]


def _promise(pick: Pick) -> str:
    return f"{rate(pick.busbw):>11}" if len(pick.gpus) > 1 else ""


def _details(pick: Pick, objective: Objective) -> list[str]:
    if len(pick.gpus) == 1:
        return []
    what = {
        Objective.RING: "expected ring busbw",
        Objective.PAIRS: "expected bandwidth of a pair, each way",
        Objective.ALL_TO_ALL: "expected all-to-all busbw",
    }[objective]
    narrow = pick.bottleneck
    note = " (as measured)" if narrow is not None and narrow.hop.kind == "measured" else ""
    note = " (assumed link rates)" if pick.assumed else note
    lines = [f"  {what}: {rate(pick.busbw)}{note}"]
    lines.append(f"  ring order: {' '.join(id.removeprefix('GPU') for id in pick.order)}")
    if pick.pairs:
        lines.append(f"  pairs: {' '.join(short(pair) for pair in pick.pairs)}")
    if pick.rings and len(set(pick.rings)) > 1:
        lines.append(f"  rings side by side: {_rings(pick)}")
    if pick.grid is not None:
        lines.append(f"  torus: {_grid(pick.grid)}")
    if len(pick.groups) > 1:
        lines.append(f"  groups: {' '.join(short(group) for group in pick.groups)}")
    return lines


def _rings(pick: Pick) -> str:
    """``[0,1,2,3] x3 [0,2,1,3]``: each distinct ring once, with its number of repetitions."""
    counts: dict[tuple[str, ...], int] = {}
    for ring in pick.rings:
        counts[ring] = counts.get(ring, 0) + 1
    return " ".join(f"{short(ring)}{f' x{n}' if n > 1 else ''}" for ring, n in counts.items())


def _grid(grid: Grid) -> str:
    shape = f"{len(grid.rows)} x {len(grid.rows[0])}"
    rows = " / ".join(short(row) for row in grid.rows)
    return (
        f"{shape}: {rows}; rows {rate(grid.row_rate)}, columns {rate(grid.column_rate)}, "
        f"all-reduce busbw {rate(grid.busbw)} with one ring each"
    )


def _routes_used(pick: Pick) -> str:
    """``3 x NV2, 1 x NV1``: the routes of the pattern, each pair once."""
    counts: dict[str, int] = {}
    pairs = {frozenset((a, b)): route for a, b, route in pick.routes}
    for route in sorted(pairs.values(), key=lambda route: route.key):
        name = route.text if route.p2p else f"{route.text} without P2P"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{n} x {name}" for name, n in counts.items())


def _tier(tier: Tier) -> str:
    shown = " ".join(short(ids) for ids in tier.sets[:_SHOWN])
    more = len(tier.sets) - _SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{rate(tier.best.busbw)}, {_routes_used(tier.best)}: {shown}{rest}"


def as_json(ranking: Ranking) -> str:
    """The ranking as JSON: rates in bytes per second, GPUs by id."""
    hidden = bool(flat(ranking.pool.topology))
    document = {
        "busbar_pick": 1,
        "objective": ranking.objective.value,
        "sets": ranking.choices,
        "exact": ranking.exact,
        "picks": [_pick_json(pick, ranking.objective, hidden) for pick in ranking.picks],
        "tiers": [
            {"busbw": tier.best.busbw, "routes": _routes_used(tier.best), "sets": tier.sets}
            for tier in ranking.tiers
        ],
        "why": reasons(ranking),
    }
    return json.dumps(document, indent=1) + "\n"


def _pick_json(pick: Pick, objective: Objective, hidden: bool) -> dict[str, object]:
    narrow, grid = pick.bottleneck, pick.grid
    return {
        "gpus": pick.gpus,
        "order": pick.order,
        **({"pairs": pick.pairs} if objective is Objective.PAIRS else {}),
        "busbw": pick.busbw if len(pick.gpus) > 1 else None,
        "single_ring": pick.single if len(pick.gpus) > 1 else None,
        "assumed": pick.assumed,
        "bottleneck": narrow
        and {
            "link": _bottleneck_words(narrow.hop, hidden),
            "flows": narrow.flows,
            "rate": narrow.rate,
        },
        "disjoint_rings": pick.rings,
        "torus": grid
        and {
            "rows": grid.rows,
            "row_rate": grid.row_rate,
            "column_rate": grid.column_rate,
            "busbw": grid.busbw,
        },
        "groups": pick.groups,
        "routes": _routes_used(pick),
    }
