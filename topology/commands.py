"""The table of the commands of ``busbar topology``."""

from busbar.commands import CommandTable

TABLE = CommandTable(
    "Map a machine.",
    "",
    {
        "check": "topology.cli:CheckCommand",
        "pick": "topology.cli:PickCommand",
        "export": "topology.cli:ExportCommand",
        "measure": "bench.links.cli:MeasureCommand",
    },
    default="topology.cli:ShowCommand",
)
