"""The commands of ``python -m reports``, by the modules that have them."""

from busbar.commands import CommandTable

TABLE = CommandTable(
    "Read logs and records; show, compare and draw them.",
    "reports.commands.",
    {
        "import": "tables:ImportCommand",
        "show": "tables:ShowCommand",
        "compare": "compare:CompareCommand",
        "history": "compare:HistoryCommand",
        "scaling": "compare:ScalingCommand",
        "culprit": "culprit:CulpritCommand",
        "plot": "figures:PlotCommand",
        "warmup": "figures:WarmupCommand",
        "html": "figures:HtmlCommand",
        "md": "tables:MdCommand",
        "model": "predictions:ModelCommand",
        "accuracy": "predictions:AccuracyCommand",
    },
)
