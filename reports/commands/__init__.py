"""The table of commands of ``busbar reports``, with the class of each."""

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
        "outliers": "culprit:OutliersCommand",
        "plot": "figures:PlotCommand",
        "warmup": "figures:WarmupCommand",
        "html": "figures:HtmlCommand",
        "md": "tables:MdCommand",
        "model": "predictions:ModelCommand",
        "accuracy": "predictions:AccuracyCommand",
    },
    elsewhere={"diff": "compare", "export": "import RUN --out FILE.csv"},
)
