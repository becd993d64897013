"""``topo -m`` in every layout that tools and people give it: what is written is what is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import examples
from topology.model.topology import Kind
from topology.sources import gather

WORDS = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"])
LINKS = st.sampled_from(["NV1", "NV4", "NV12", "NV18", "NV36", "SYS", "PIX"])
COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
LISTS = st.sampled_from(["0-3", "0-47,96-143", "0,2-17", "N/A", "72-143", "5"])
NAMES = ("mlx5_0", "mlx5_bond_0", "rocep1s0f0", "bnxt_re1", "irdma-2", "efa_0", "mlx5_10", "ib0")
PREFIXES = (
    "",
    "  ",
    "\t",
    "> ",
    "node-001: ",
    "2026-11-21T10:00:00Z gpu1 ",
    "[1,0]<stdout>:",
    "0: ",
)

#: What web forms and terminals make of the escape character: shown, written out, lost.
ESCAPES = ("\x1b", "", "\ufffd", "\u241b", "^[", "\\u001b", "\\033", "\\x1b", "\\e")

Reshape = Callable[[str], str]


def _spaced(tab: int) -> Reshape:
    return lambda line: line.expandtabs(tab)


RESHAPES: Mapping[str, Reshape] = {
    "as it is": lambda line: line,
    "columns of 8": _spaced(8),
    "columns of 4": lambda line: line.replace("\t", "\t\t").expandtabs(4),
    "single blanks": lambda line: " ".join(line.split("\t")),
    "carriage returns": lambda line: line + "\r",
    "hard spaces": lambda line: line.expandtabs(8).replace("  ", " \xa0"),
}


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[str], list[list[str]], list[list[str]], bool]:
    """Labels, cells, the further columns of GPUs, and whether a legend names NICs."""
    gpus, nics = draw(st.integers(1, 9)), draw(st.integers(0, 17))
    legend = nics > len(NAMES) or draw(st.booleans())
    labels = [f"GPU{n}" for n in range(gpus)]
    labels += [f"NIC{n}" for n in range(nics)] if legend else NAMES[:nics]
    size = len(labels)
    cells = [["X"] * size for _ in range(size)]
    for a in range(size):
        for b in range(a):
            cells[a][b] = cells[b][a] = draw(LINKS if a < gpus else WORDS)
    last = st.sampled_from(["N/A", "2", "10"])
    rest = [[draw(LISTS), draw(LISTS), draw(last)] for _ in range(gpus)]
    return labels, cells, rest, legend


def text_of(
    labels: list[str],
    cells: list[list[str]],
    rest: list[list[str]],
    names: list[str],
    reshape: str,
    prefix: str,
    escape: str | None,
) -> str:
    """The text of nvidia-smi, then reshaped.

    ``rest`` are a GPU's further columns, ``names`` the legend's.
    """
    header = "\t".join([*labels, *COLUMNS])
    lines = ["\t" + (header if escape is None else f"{escape}[4m{header}{escape}[0m")]
    for n, (label, row) in enumerate(zip(labels, cells, strict=True)):
        # nvidia-smi sets the last column off by an empty one.
        more = [*rest[n][:2], "", rest[n][2]] if n < len(rest) else ["", "", "", ""]
        lines.append("\t".join([label, *(" X " if c == "X" else c for c in row), *more]))
    lines += ["", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing # NVLinks", ""]
    if names:
        lines += ["NIC Legend:", "", *(f"  NIC{n}: {name}" for n, name in enumerate(names))]
    return "\n".join(prefix + RESHAPES[reshape](line) for line in lines)


@examples(60)
@given(
    machines(),
    st.sampled_from(sorted(RESHAPES)),
    st.sampled_from(PREFIXES),
    st.none() | st.sampled_from(ESCAPES),
)
def test_what_is_written_is_read(
    machine: tuple[list[str], list[list[str]], list[list[str]], bool],
    reshape: str,
    prefix: str,
    escape: str | None,
) -> None:
    """Rule: cells, names and affinities survive tabs, blanks, indents, prefixes and escapes."""
    labels, cells, rest, legend = machine
    gpus = len(rest)
    named = [f"mlx5_{n + 3}" for n in range(len(labels) - gpus)] if legend else []
    text = text_of(labels, cells, rest, named, reshape, prefix, escape)
    topology = gather.parse(text)
    assert [len(topology.gpus), len(topology.nics)] == [gpus, len(labels) - gpus]
    assert topology.matrix() == tuple(map(tuple, cells))
    names = [nic.name for nic in topology.of(Kind.NIC)]
    assert names == (named if legend else labels[gpus:])
    for gpu, said in zip(topology.gpus, rest, strict=True):
        facts = ("cpu_affinity", "numa_affinity", "gpu_numa_id")
        assert [str(gpu.get(f) if gpu.get(f) is not None else "N/A") for f in facts] == said
