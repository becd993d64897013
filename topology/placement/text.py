"""A ranking for people (text) and for programs (JSON)."""

from __future__ import annotations

import json

from busbar.terminal import make_lines_printable, wrap_line
from topology.placement.pick import Grid, Objective, Pick, Ranking, Tier
from topology.placement.why import hop_words, rate, reasons, short

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
            f"  {place}. {short(pick.gpus):{room}}  {_promise(pick)}  {_uses(pick)}"
            for place, pick in enumerate(ranking.picks, 1)
        ]
    if len(ranking.tiers) > 1:
        lines += ["", "tiers:"]
        lines += [f"  {_tier(tier)}" for tier in ranking.tiers]
    return make_lines_printable(
        "\n".join(row for line in lines for row in _wrapped(line, width)) + "\n"
    )


def _wrapped(line: str, width: int) -> list[str]:
    """Continue below the text of a bullet, two columns further in elsewhere."""
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
    said = " (as measured)" if narrow is not None and narrow.hop.kind == "measured" else ""
    said = " (assumed link rates)" if pick.assumed else said
    lines = [f"  {what}: {rate(pick.busbw)}{said}"]
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
    """``[0,1,2,3] x3 [0,2,1,3]``: repeated rings, each on links of its own, named once."""
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


def _uses(pick: Pick) -> str:
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
    return f"{rate(tier.best.busbw)}, {_uses(tier.best)}: {shown}{rest}"


def as_json(ranking: Ranking) -> str:
    """The ranking as JSON: rates in bytes per second, GPUs by id."""
    document = {
        "busbar_pick": 1,
        "objective": ranking.objective.value,
        "sets": ranking.choices,
        "exact": ranking.exact,
        "picks": [_pick_json(pick, ranking.objective) for pick in ranking.picks],
        "tiers": [
            {"busbw": tier.best.busbw, "routes": _uses(tier.best), "sets": tier.sets}
            for tier in ranking.tiers
        ],
        "why": reasons(ranking),
    }
    return json.dumps(document, indent=1) + "\n"


def _pick_json(pick: Pick, objective: Objective) -> dict[str, object]:
    narrow, grid = pick.bottleneck, pick.grid
    return {
        "gpus": pick.gpus,
        "order": pick.order,
        **({"pairs": pick.pairs} if objective is Objective.PAIRS else {}),
        "busbw": pick.busbw if len(pick.gpus) > 1 else None,
        "single_ring": pick.single if len(pick.gpus) > 1 else None,
        "assumed": pick.assumed,
        "bottleneck": narrow
        and {"link": hop_words(narrow.hop), "flows": narrow.flows, "rate": narrow.rate},
        "disjoint_rings": pick.rings,
        "torus": grid
        and {
            "rows": grid.rows,
            "row_rate": grid.row_rate,
            "column_rate": grid.column_rate,
            "busbw": grid.busbw,
        },
        "groups": pick.groups,
        "routes": _uses(pick),
    }
