"""``verify``: prove schedules, in and out of place."""

from __future__ import annotations

import sys
from pathlib import Path

from busbar.commands import Command
from busbar.cpulist import listed
from busbar.errors import ScheduleError, Unsupported
from busbar.options import option
from busbar.tables import new_table
from busbar.units import parse_ranks
from collectives.commands.command import SchedulesOptions, pairs, show
from collectives.formats.load import build, from_file, proven
from collectives.schedule.catalogue import spec


class VerifyCommand(SchedulesOptions, Command):
    """Prove schedules, in and out of place."""

    ranks: str = option("-n --ranks  rank counts, like 2-8,16", "1-17,32")

    def run(self) -> int:
        """Print what was proven; 1 where a schedule is wrong."""
        from collectives.schedule.verify import verify

        if from_file(self.name):
            return self._verify_file(Path(self.name))
        options, name, parameters = self.algorithm()
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
                        schedule = build(collective, each, nranks, root=root, **parameters)
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
            table.add_row(
                collective, each, _spans(proven), failed or _spans([n for n, _ in refused])
            )
        show(table)
        return status

    def _verify_file(self, path: Path) -> int:
        """Prove a file in the place of NAME."""
        try:
            proof = proven(path)
        except ScheduleError as error:
            print(f"collectives: {error}", file=sys.stderr)
            return 1
        self.check_layout(path, proof.layout)
        print("\n".join(proof.summary))
        return 0


def _spans(numbers: list[int]) -> str:
    """1, 2, 3, 5 as ``1-3 5``."""
    return listed(numbers).replace(",", " ") or "-"
