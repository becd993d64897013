"""``nvidia-smi topo -m`` (and ``-mp``) in its dialects: relations and affinities, no bus ids.

It accepts tabs or spaces, markdown, NIC names in the header or in a legend, texts with or without
affinity columns, SOC for SYS, terminal escapes, prompts and log prefixes; see docs/topology.md.
"""

from __future__ import annotations

import re

from busbar.cpulist import members
from busbar.errors import ProbeError
from topology.model.device import LEVEL_WORDS
from topology.model.topology import Kind, Topology
from topology.sources.draft import Draft
from topology.sources.matrix_text import LEVELS, Matrix, check_symmetric, find
from topology.sources.text import lines

NAME = "topo -m"
_LEGEND = re.compile(r"\b((?:NIC|DD)[0-9]+)\s*[:=]\s*([A-Za-z][\w.-]*)")
_FACTS = {"cpu": "cpu_affinity", "numa": "numa_affinity", "gpu": "gpu_numa_id"}


def parse(text: str) -> Topology:
    """Parse the text of one machine. Raises ProbeError, with the line, if it is incomplete."""
    rows = lines(NAME, text)
    matrices = find(NAME, rows, LEVELS)
    matrix = matrices[0]
    for other in matrices[1:]:
        if (other.labels, other.cells) != (matrix.labels, matrix.cells):
            reason = (
                f"another matrix, unlike the one at line {matrix.line}; give one machine at a time"
            )
            raise ProbeError(NAME, reason, other.line)
    check_symmetric(NAME, matrix)
    # If the whole text was on one line, so is the legend.
    legend = dict(_LEGEND.findall("\n".join(rows[matrix.end :] or rows)))
    draft = Draft(NAME)
    ids = _devices(draft, matrix, legend)
    # `-mp` prints no NVLinks, so a PCIe word means "no NVLink" only if some pair has one.
    none = (
        0
        if any(w.startswith("NV") for row in matrix.cells.values() for w in row.values())
        else None
    )
    explained = "\n".join(rows[matrix.end :])
    if none is None and re.search(r"\bNODE\s*=", explained) and "NV#" not in explained:
        draft.gap("GPUs", "nvlinks", "the legend has no NV#, as that of topo -mp: no NVLinks told")
    for label in matrix.beyond:
        draft.gap(label, NAME, "a row without a column: the text is cut on the right")
    for at, a in enumerate(matrix.labels):
        for b in matrix.labels[at + 1 :]:
            word = matrix.cells.get(a, {}).get(b) or matrix.cells.get(b, {}).get(a)
            if word is None:
                draft.gap(f"{ids[a]} and {ids[b]}", NAME, "the text has no row for either")
            elif word.startswith("NV"):
                draft.pair(ids[a], ids[b], nvlinks=int(word[2:]))
            else:
                draft.pair(ids[a], ids[b], level=LEVEL_WORDS[word].name, nvlinks=none)
    return draft.build()


def _devices(draft: Draft, matrix: Matrix, legend: dict[str, str]) -> dict[str, str]:
    ids: dict[str, str] = {}
    counts = {Kind.GPU: 0, Kind.NIC: 0, Kind.DIRECT: 0, Kind.MIG: 0}
    for label in matrix.labels:
        numbered = re.fullmatch(r"(GPU|NIC|DD|MIG)([0-9]{1,6})", label)
        word, digits = numbered.groups() if numbered else ("NIC", "")
        kind = {"GPU": Kind.GPU, "NIC": Kind.NIC, "DD": Kind.DIRECT, "MIG": Kind.MIG}[word]
        index = int(digits) if digits else counts[kind]
        counts[kind] = max(counts[kind], index + 1)
        name = legend.get(label, "" if numbered else label)
        ids[label] = draft.add(f"{word}{index}", kind, index, name=name)
        if label != ids[label]:
            draft.state(ids[label], label=label)
        if label in matrix.rest:
            _affinities(draft, ids[label], matrix, label)
    if len(set(ids.values())) < len(ids):
        raise ProbeError(NAME, "NICs are called by number and by name at once", matrix.line)
    return ids


def _affinities(draft: Draft, id: str, matrix: Matrix, label: str) -> None:
    before, after = matrix.rest[label]
    text = before if matrix.before else after
    if "|" in text:
        values = [cell.strip() for cell in text.strip().strip("|").split("|")]
    elif "\t" in text.lstrip(" "):
        # nvidia-smi puts an empty column before its last one: the GPU's NUMA id, or in older
        # versions the NUMA affinity.
        values = [cell.strip() for cell in text.lstrip(" ").removeprefix("\t").split("\t")]
        last = len(matrix.columns) - 1
        values = [*values[:last], next((v for v in values[last:] if v), "")]
    else:
        values = text.split()
        if 0 < len(values) < len(matrix.columns):
            values = _sparse(draft, id, matrix.columns, values)
    for column, value in zip(matrix.columns, values, strict=False):
        if value and value != "N/A":
            if members(value) is not None:
                draft.state(
                    id,
                    **{
                        _FACTS[column]: int(value)
                        if column == "gpu" and value.isdecimal()
                        else value
                    },
                )
            else:
                draft.gap(id, _FACTS[column], f"{value[:80]!r} is no list of numbers")


def _sparse(draft: Draft, id: str, columns: tuple[str, ...], values: list[str]) -> list[str]:
    """Assign fewer values than columns: N/A is the GPU's NUMA id; ambiguous ones become a gap."""
    if values == ["N/A"]:
        return []
    if columns[-1] == "gpu" and values[-1] == "N/A":
        columns, values = columns[:-1], values[:-1]
    if len(values) == len(columns):
        return values
    draft.gap(id, "affinity", f"{' '.join(values)!r} may stand in any of {len(columns)} columns")
    return []
