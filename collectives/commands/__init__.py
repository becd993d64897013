"""The table of the commands of ``busbar collectives``."""

from busbar.commands import CommandTable

TABLE = CommandTable(
    "Schedules of collectives: see, prove, cost.",
    "collectives.commands.",
    {
        "list": "schedules:ListCommand",
        "show": "schedules:ShowCommand",
        "verify": "schedules:VerifyCommand",
        "cost": "costing:CostCommand",
        "fit": "fitting:FitCommand",
        "simulate": "simulating:SimulateCommand",
        "import": "foreign:ImportCommand",
        "export": "foreign:ExportCommand",
    },
    elsewhere="collectives.commands.command:commands_for",
)
