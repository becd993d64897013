"""``nvidia-smi topo -p2p r|w|n|a|p``: which GPUs may access each other's memory."""

from __future__ import annotations

import re

from busbar.errors import ProbeError
from topology.model.topology import Topology
from topology.sources.draft import Draft
from topology.sources.matrix_text import STATUSES, find
from topology.sources.text import lines

NAME = "topo -p2p"
#: The capability letters of the command line, and the facts that they state.
CAPABILITIES = {
    "r": "p2p_read",
    "w": "p2p_write",
    "n": "p2p_nvlink",
    "a": "p2p_atomics",
    "p": "p2p_pci",
}
_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2pstatus)[\s=]+([rwnap])\b")


def parse(text: str) -> Topology:
    """Parse P2P matrices; each has the letter of the command line above it, else ``r``."""
    rows = lines(NAME, text)
    draft = Draft(NAME)
    start, seen = 0, set()
    for matrix in find(NAME, rows, STATUSES):
        named = [m[1] for line in rows[start : matrix.line] if (m := _COMMAND.search(line))]
        fact = CAPABILITIES[named[-1] if named else "r"]
        if fact in seen:
            raise ProbeError(
                NAME, f"a second matrix for {fact}; give one machine at a time", matrix.line
            )
        if not named:
            draft.gap("machine", "capability", "the text does not say which; taken for -p2p r")
        seen.add(fact)
        start = matrix.end
        for label in matrix.labels:
            index = re.fullmatch(r"GPU([0-9]{1,6})", label)
            if index is None:
                raise ProbeError(NAME, f"{label} is no GPU", matrix.line)
            draft.gpu(int(index[1]))
        for a, row in matrix.cells.items():
            for b, word in row.items():
                if a != b:
                    draft.pair(f"GPU{int(a[3:])}", f"GPU{int(b[3:])}", **{fact: word})
    return draft.build()
