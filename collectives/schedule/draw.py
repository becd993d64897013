"""Drawings of schedules: a step table as text, and a picture of ranks × steps.

Gives strings and files; prints nothing.
"""

from __future__ import annotations

from pathlib import Path

from busbar.errors import Unsupported
from busbar.figures import checked, save
from collectives.schedule.moves import Buffer, Move, Moves
from collectives.schedule.schedule import Schedule

COPY, REDUCE = "#1f6fb4", "#c8501e"
_MOST_ARROWS = 20_000


def describe(move: Move, vector: bool = True) -> str:
    """One move as its sender sees it: ``→2 5`` sends chunk 5 to rank 2, ``→2 +5`` adds it there.

    A placed schedule also names the buffers: ``→2 in[0] +out[5]``.
    """
    source, target = move.from_slot, move.to_slot
    plus = "+" if move.reduce else ""
    if vector:
        return f"→{move.dst} {plus}{_run(source.chunk, source.count)}"
    read = f"{_name(source.buffer)}[{_run(source.chunk, source.count)}]"
    return f"→{move.dst} {read} {plus}{_name(target.buffer)}[{_run(target.chunk, target.count)}]"


def _name(buffer: Buffer) -> str:
    return buffer.name.lower()


def _run(chunk: int, count: int) -> str:
    return str(chunk) if count == 1 else f"{chunk}-{chunk + count - 1}"


def listed(moves: Moves, vector: bool = True) -> list[str]:
    """Every move of a step with its sender before it, neighbouring chunks joined: ``0→1 +3``."""
    m = moves.joined()
    more = (m.count - 1).tolist()
    columns = [m.src, m.dst, m.src_chunk, m.dst_chunk, m.src_buffer, m.dst_buffer]
    rows = zip(*(column.tolist() for column in columns), more, m.reduce.tolist(), strict=True)
    if vector:
        return [
            f"{src}→{dst} {'+' if reduce else ''}{c}{f'-{c + extra}' if extra else ''}"
            for src, dst, c, _, _, _, extra, reduce in rows
        ]
    return [
        f"{src}→{dst} {_slot(rb, rc, extra)} {'+' if reduce else ''}{_slot(wb, wc, extra)}"
        for src, dst, rc, wc, rb, wb, extra, reduce in rows
    ]


def _slot(buffer: int, chunk: int, more: int) -> str:
    return f"{_name(Buffer(buffer))}[{_run(chunk, more + 1)}]"


def cells(moves: Moves, nranks: int, vector: bool = True) -> list[list[str]]:
    """The messages of every rank in a step, with adjacent chunks joined."""
    found: list[list[str]] = [[] for _ in range(nranks)]
    for move in moves.joined():
        found[move.src].append(describe(move, vector))
    return found


def picture(schedule: Schedule, title: str, path: Path) -> None:
    """Draw ranks × steps with an arrow a message into a file.

    Its ending is the format (svg, png, pdf).

    Raises what `figures.checked` does, and Unsupported for a schedule with too many messages to see
    anything.
    """
    checked(path)
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    steps = [step.remote().joined() for step in schedule.all_moves]
    steps = [step for step in steps if len(step)]
    if sum(map(len, steps)) > _MOST_ARROWS:
        raise Unsupported(f"{sum(map(len, steps))} messages are too many to draw; take fewer ranks")
    figure = Figure(figsize=(2 + 1.1 * max(2, len(steps)), 1.6 + 0.45 * schedule.nranks))
    axes = figure.subplots()
    for number, step in enumerate(steps):
        readable = schedule.nchunks > 1 and len(step) <= 2 * schedule.nranks <= 32
        for move in step:
            _arrow(axes, number, move, labels=readable)
    axes.set(
        title=title,
        xlim=(-0.3, max(1, len(steps)) + 0.1),
        ylim=(schedule.nranks - 0.5, -0.5),
        xlabel="step",
        ylabel="rank",
        xticks=[i + 0.4 for i in range(len(steps))],
        xticklabels=[str(i) for i in range(len(steps))],
        yticks=range(schedule.nranks),
    )
    axes.hlines(range(schedule.nranks), -0.3, len(steps), color="#dddddd", linewidth=0.8, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    keys = [(COPY, "copy"), (REDUCE, "reduce")]
    lines = [Line2D([], [], color=color, label=label) for color, label in keys]
    figure.legend(handles=lines, loc="outside lower right", ncols=2, frameon=False)
    figure.set_layout_engine("constrained")
    save(figure, path, 120)


def _arrow(axes: object, number: int, move: Move, *, labels: bool) -> None:
    """From the sender at the step's start to the receiver at its end, with its chunks."""
    color = REDUCE if move.reduce else COPY
    start, end = (number, move.src), (number + 0.8, move.dst)
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", end, start, arrowprops=style)  # type: ignore[attr-defined]
    if labels:
        # Near the sender, where the arrows of a step have not crossed yet.
        x, y = number + 0.16, move.src + 0.2 * (move.dst - move.src)
        axes.text(  # type: ignore[attr-defined]
            x,
            y,
            _run(move.from_slot.chunk, move.from_slot.count),
            color=color,
            fontsize=7,
            ha="center",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
