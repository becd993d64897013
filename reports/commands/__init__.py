"""The commands of ``python -m reports``, by the modules that have them."""

from busbar.commands import CommandTable

TABLE = CommandTable(
    "Read logs and records; show, compare and draw them.",
    "reports.commands.",
    {
        "import": "import_:ImportCommand",
        "show": "show:ShowCommand",
        "compare": "compare:CompareCommand",
        "history": "history:HistoryCommand",
        "scaling": "scaling:ScalingCommand",
        "culprit": "culprit:CulpritCommand",
        "plot": "plot:PlotCommand",
        "warmup": "warmup:WarmupCommand",
        "html": "html:HtmlCommand",
        "md": "md:MdCommand",
        "model": "model:ModelCommand",
        "accuracy": "accuracy:AccuracyCommand",
    },
)
