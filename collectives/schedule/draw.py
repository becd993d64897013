"""Drawings of schedules: a step table as text, and a picture of ranks × steps.

Returns strings and writes files; prints nothing.
"""

from __future__ import annotations

from pathlib import Path

from busbar.errors import Unsupported
from busbar.files import check_figure as checked
from busbar.files import save_figure as save
from collectives.schedule.moves import Buffer, Move, Moves
from collectives.schedule.schedule import Schedule

COPY, REDUCE = "#1f6fb4", "#c8501e"
_MOST_ARROWS = 20_000


def describe_moves(moves: Moves, vector: bool = True) -> list[tuple[int, str]]:
    """The moves of a step as (sender, text), with adjacent chunks joined.

    ``→2 5`` sends chunk 5 to rank 2, ``→2 +5`` adds it there. In a placed schedule (``vector``
    False) slots have their buffers' names: ``→2 in[0] +out[5]``.
    """
    texts = []
    names = [buffer.name.lower() for buffer in Buffer]
    # By columns, because a large schedule has millions of moves.
    for src, dst, sb, sc, db, dc, count, reduce in moves.joined().table.T.tolist():
        plus = "+" if reduce else ""
        if vector:
            text = f"→{dst} {plus}{_run(sc, count)}"
        else:
            into = f"{plus}{names[db]}[{_run(dc, count)}]"
            text = f"→{dst} {names[sb]}[{_run(sc, count)}] {into}"
        texts.append((src, text))
    return texts


def _run(chunk: int, count: int) -> str:
    return str(chunk) if count == 1 else f"{chunk}-{chunk + count - 1}"


def draw_schedule(schedule: Schedule, title: str, path: Path) -> None:
    """Draw ranks × steps into a file, with an arrow for each message; the suffix is the format.

    Raises what `check_figure` does, and Unsupported for more messages than can be seen.
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
        # Near the sender, where the arrows of a step do not cross yet.
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
