"""``nvidia-smi nvlink -s``: how many NVLinks of each GPU are up, and their rates.

``-e``: their errors.
"""

from __future__ import annotations

import re

from busbar.errors import ProbeError
from topology.model.topology import Topology
from topology.sources.draft import Draft
from topology.sources.text import lines

NAME = "nvlink"
_GPU = re.compile(r"\bGPU ([0-9]{1,4}): (.+?) \(UUID: ([^)\s]+)\)")
#: Some texts lack the UUID; such a line counts only if a link or its absence follows.
_BARE_GPU = re.compile(r"\bGPU ([0-9]{1,4}): ([^:]+?)()\s*")
_LINK = re.compile(r"\bLink ([0-9]{1,3})\s*[:,]\s*(\S.*?)\s*$")
_SPEED = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s")
#: Not ``FEC Errors - 0``: those were corrected, by the billion on a healthy link.
_ERRORS = re.compile(r"\b(?:Errors|Total link recovery events): ([0-9]{1,18})\b")
#: Capabilities, the remote device, versions, counters of traffic.
_OTHER = re.compile(r"\(?Not supported\)?$|[^:]+:\s*\S|Version", re.I)
_DOWN = re.compile(r"<?(?:inactive|disabled|down)>?", re.I)
_UP = re.compile(r"<?(?:active|enabled|up)>?", re.I)
_NONE = re.compile(r"all links are inactive", re.I)
_LACKS = re.compile(r"does not have or support Nvlink", re.I)


class _Gpu:
    def __init__(self, id: str) -> None:
        self.id = id
        self.up: dict[int, float] = {}
        self.down: set[int] = set()
        self.errors: int | None = None
        self.stated = False


def parse(text: str) -> Topology:
    """Parse the text; lines that are neither a GPU nor a link are skipped.

    Raises ProbeError, with the line, for a link without a GPU or in an unknown state.
    """
    draft = Draft(NAME)
    gpus: dict[str, _Gpu] = {}
    gpu: _Gpu | None = None
    rows = lines(NAME, text)
    for number, line in enumerate(rows, 1):
        if head := _GPU.search(line) or _bare(rows, number):
            id = draft.gpu(int(head[1]), head[2], uuid=head[3] or None)
            gpu = gpus.setdefault(id, _Gpu(id))
        elif gpu is not None and (_NONE.search(line) or _LACKS.search(line)):
            gpu.stated = True
            if _LACKS.search(line):
                draft.gap(gpu.id, "nvlinks", "this GPU has no NVLink")
        elif link := _LINK.search(line):
            if gpu is None:
                raise ProbeError(NAME, "a link before any line that names its GPU", number)
            _state(gpu, int(link[1]), link[2], number)
    if not gpus:
        raise ProbeError(NAME, "no line such as 'GPU 0: NVIDIA H100 (UUID: GPU-…)'")
    for gpu in gpus.values():
        _conclude(draft, gpu)
    return draft.build()


def _bare(rows: list[str], number: int) -> re.Match[str] | None:
    head = _BARE_GPU.fullmatch(rows[number - 1].strip())
    after = rows[number] if head and number < len(rows) else ""
    return head if any(mark.search(after) for mark in (_LINK, _NONE, _LACKS)) else None


def _state(gpu: _Gpu, number: int, state: str, line: int) -> None:
    if speed := _SPEED.fullmatch(state):
        rate = float(speed[1]) * 1e9
        if rate > 0:
            gpu.up[number] = rate
        else:
            gpu.down.add(number)
    elif _UP.fullmatch(state):
        gpu.up[number] = 0.0
    elif _DOWN.fullmatch(state):
        gpu.down.add(number)
    elif errors := _ERRORS.findall(state):
        gpu.errors = (gpu.errors or 0) + sum(map(int, errors))
    elif not _OTHER.match(state):
        raise ProbeError(NAME, f"link {number} is in a state unknown here: {state[:60]!r}", line)


def _conclude(draft: Draft, gpu: _Gpu) -> None:
    if gpu.up or gpu.down or gpu.stated:
        draft.state(gpu.id, nvlinks=len(gpu.up), nvlinks_down=tuple(sorted(gpu.down)) or None)
    if any(gpu.up.values()):
        # The slowest link is stated for all, because a link with a low rate is what matters.
        draft.state(gpu.id, nvlink_rate=min(rate for rate in gpu.up.values() if rate))
    draft.state(gpu.id, nvlink_errors=gpu.errors)
