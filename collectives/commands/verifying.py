"""``verify``: prove schedules, in and out of place."""

from __future__ import annotations

import argparse

from busbar.cpulist import listed
from busbar.errors import ScheduleError, Unsupported
from busbar.tables import new_table
from busbar.units import parse_ranks
from collectives.commands import foreign as files
from collectives.commands.command import Subcommand, pairs, schedule_options, show
from collectives.formats.load import build, from_file
from collectives.schedule.catalogue import spec

_COUNTS = "1-17,32"


def _options(parser: argparse.ArgumentParser) -> None:
    text = f"rank counts, like 2-8,16 (default {_COUNTS})"
    schedule_options(parser, every=True, ranks=_COUNTS, ranks_help=text)


def _verify(options: argparse.Namespace) -> int:
    from collectives.schedule.verify import verify

    if from_file(options.name):
        return files.verify(options)
    name, given = files.asked(options)
    table = new_table("", "collective", "algorithm", "proven for ranks", "not for", text=4)
    status = 0
    counts = parse_ranks(options.ranks)
    for collective, each in pairs(options, name):
        what = spec(collective)
        proven, refused, failed = [], [], ""
        for nranks in counts:
            roots = {min(options.root, nranks - 1), nranks - 1} if what.rooted else {0}
            try:
                for root in sorted(roots):
                    schedule = build(collective, each, nranks, root=root, **given)
                    for in_place in (False, True)[: 1 + what.in_place]:
                        verify(schedule, what, root=root, in_place=in_place)
                proven.append(nranks)
            except Unsupported as error:
                refused.append((nranks, str(error)))
            except ScheduleError as error:
                failed, status = f"{nranks} ranks: {error}", 1
                break
        if not proven and not failed and name != "all":
            raise Unsupported(refused[-1][1])
        table.add_row(collective, each, _spans(proven), failed or _spans([n for n, _ in refused]))
    show(table)
    return status


def _spans(numbers: list[int]) -> str:
    """1, 2, 3, 5 as ``1-3 5``."""
    return listed(numbers).replace(",", " ") or "-"


COMMAND = Subcommand("prove schedules, in and out of place", _options, _verify)
