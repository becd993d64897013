"""Views: what people see is what the map says, at any width, and is escaped."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.tables import escape_cell
from busbar.terminal import make_printable
from tests.command import topology_main
from tests.conftest import examples
from topology.diagnostics import check
from topology.model.device import Fact
from topology.model.topology import Device, Kind, Topology
from topology.sources import smi_topo
from topology.views import picture, terminal

from . import texts
from .conftest import Loaded
from .machines import dgx_1v, shapes, switched
from .test_model import topologies
from .test_smi_text import RAW


@given(shapes(8), st.booleans())
def test_matrix_text_reads_back_the_same(shape: list[list[int]], underline: bool) -> None:
    """Rule: what looks as nvidia-smi's output is read as nvidia-smi's output."""
    topology = switched(shape)
    read = smi_topo.parse(terminal.matrix_text(topology, underline))
    assert read.matrix() == topology.matrix()
    assert [gpu.get("cpu_affinity") for gpu in read.gpus] == [
        numa.get("cpus") if (numa := topology.ancestor(gpu.id, Kind.NUMA)) else None
        for gpu in topology.gpus
    ]


def test_matrix_is_nvidia_smis_to_the_letter() -> None:
    """Rule: what we print of today's dialect is what was read."""
    rows = len(smi_topo.parse(RAW).endpoints) + 1
    ours = terminal.matrix_text(smi_topo.parse(RAW), underline=True)
    assert ours.splitlines()[:rows] == RAW.splitlines()[:rows]


@given(topologies(), st.integers(40, 160))
@examples(60)
def test_any_map_has_all_views(topology: Topology, width: int) -> None:
    """Rule: matrix, tree, CSV and findings of any map are printable text; CSV has a row a device.

    A name in a file that someone sent cannot move the cursor or colour the screen.
    """
    shown = [
        terminal.matrix_text(topology),
        terminal.tree_text(topology, width),
        terminal.matrix_csv(topology),
    ]
    rows = list(csv.reader(io.StringIO(shown[2])))
    assert [row[0] for row in rows[1:]] == [
        escape_cell(make_printable(end.id)) for end in topology.endpoints
    ]
    assert all(len(row) == len(rows[0]) for row in rows)
    assert shown[1].startswith("machine")
    shown.append(terminal.findings_text(topology, check(topology), width))
    for text in shown:
        assert all(c.isprintable() or c in "\n\t" or category(c) == "Zs" for c in text)
    ends = len(topology.endpoints)
    assert len(shown[2].splitlines()) == ends + 1
    assert not ends or shown[0].index("\n\nLegend") == len(
        "\n".join(shown[0].split("\n")[: ends + 1])
    )


def test_tree_shows_every_device_once(machine: Loaded) -> None:
    """Rule: every GPU, NIC, bridge and switch has a line of its own, within the width."""
    _, topology = machine
    for width in (80, 160):
        shown = terminal.tree_text(topology, width)
        assert max(map(len, shown.splitlines())) <= width
        for device in topology.devices:
            if device.kind not in (Kind.CACHE, Kind.CORE):
                assert len(re.findall(rf"── {re.escape(device.id)}(?:[ \n]|$)", shown)) == 1


def test_alike_cores_share_a_line() -> None:
    """Rule: sixty cores are one line with their CPUs, not sixty."""
    numa = Device("NUMA0", Kind.NUMA, 0)
    cores = [
        Device(f"CORE{n}", Kind.CORE, n, parent="NUMA0", facts=(Fact("cpus", str(n), "x"),))
        for n in range(60)
    ]
    shown = terminal.tree_text(Topology((numa, *cores)), 80)
    assert "60 x core  CPUs 0-59" in shown
    assert "CORE1" not in shown


@given(shapes(8))
def test_picture_places_neighbours_together(shape: list[list[int]]) -> None:
    """Rule: no two boxes meet; what shares a switch stands side by side; parents are above."""
    topology = switched(shape)
    drawing = picture.draw(topology)
    places = {node.id: (node.x, node.y) for node in drawing.nodes}
    assert len(set(places.values())) == len(places)
    row = sorted((gpu.id for gpu in topology.gpus), key=lambda id: places[id][0])
    assert row == [gpu.id for gpu in topology.gpus]
    for device in topology.devices:
        if device.parent:
            assert places[device.id][1] < places[device.parent][1]
    for edge in drawing.edges:
        assert edge.points[0] in (places[edge.a], places[edge.b])
        assert 0 < edge.width <= 7


@given(topologies())
@examples(60)
def test_any_map_is_drawn(topology: Topology) -> None:
    """Rule: a picture of whatever map has a place for both ends of every line."""
    drawing = picture.draw(topology)
    places = {node.id for node in drawing.nodes}
    assert all({edge.a, edge.b} <= places for edge in drawing.edges)


def test_switches_in_the_tree_are_drawn_below() -> None:
    """Rule: an NVSwitch that sysfs sees behind a bridge of its own still stands below the GPUs."""
    topology = switched([[2]], nvlinks=6)
    bridge = Device("SW9", Kind.BRIDGE, parent="NUMA0")
    devices = tuple(
        replace(d, parent="SW9") if d.kind is Kind.SWITCH else d for d in topology.devices
    )
    drawing = picture.draw(replace(topology, devices=(*devices, bridge)))
    height = {node.id: node.y for node in drawing.nodes}
    assert height["NVS0"] < height["GPU0"] < height["SW9"]


def test_wider_lines_are_faster_links() -> None:
    """Rule: of two links of a DGX-1V the one with two NVLinks is drawn twice as wide."""
    widths = {(edge.a, edge.b): edge.width for edge in picture.draw(dgx_1v()).edges}
    assert widths["GPU0", "GPU3"] == pytest.approx(2 * widths["GPU0", "GPU1"])


NASTY = "</script><b>&\"'$x^2$"


def nasty() -> Topology:
    """A machine whose names try to be markup."""
    return Topology(
        (
            Device("HOST", Kind.HOST, name=NASTY),
            Device("GPU0", Kind.GPU, 0, name=NASTY, parent="HOST"),
            Device("GPU1", Kind.GPU, 1, name="b", parent="HOST"),
        ),
        sources=(NASTY,),
    )


def test_svg_is_xml_with_facts_to_hover() -> None:
    """Rule: the SVG is well-formed, and every box says what it is, escaped."""
    root = ET.fromstring(picture.svg(nasty()))
    titles = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert f"GPU0 {NASTY}" in "\n".join(titles)
    assert not any(node.tag.endswith("}b") for node in root.iter())


def test_page_escapes_what_it_shows() -> None:
    """Rule: nothing that a source said can end the page's script or become a tag."""
    text = picture.page(nasty())
    assert NASTY not in text
    assert "<b>&" not in text
    assert "GPU0" in text
    assert 'src="http' not in text


def test_csv_has_no_formulas() -> None:
    """Rule: an id or a fact out of a file that someone sent is a text in a spreadsheet."""
    facts = (Fact("numa_affinity", "@cmd", "x"), Fact("gpu_numa_id", "+1", "x"))
    gpus = (Device("=1+1", Kind.GPU, 0, facts=facts), Device("GPU1", Kind.GPU, 1))
    shown = terminal.matrix_csv(Topology(gpus, (), (), (), (), ("x",)))
    cells = [cell for row in csv.reader(io.StringIO(shown)) for cell in row]
    assert cells.count("'=1+1") == 2 and "'@cmd" in cells and "'+1" in cells
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


def test_rates_alone_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: where no source says what connects GPUs, what was measured of them is shown.

    nvbandwidth's tables between host and device alone gave a matrix of question marks.
    """
    text = "memcpy CE CPU(row) {} GPU(column) bandwidth (GB/s)\n          0         1\n0     {}\n\n"
    path = tmp_path / "nvbandwidth.txt"
    path.write_text(text.format("->", "26.03     25.94") + text.format("<-", "25.97     13.11"))
    assert topology_main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "GPU1  from the host 25.94, to the host 13.11\n" in shown
    path.write_text(texts.P2P_TEST)
    assert topology_main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "bandwidth, GB/s" in shown and "promise" not in shown
    path.write_text(texts.TOPO)
    assert topology_main([str(path)]) == 0
    assert "GB/s" not in capsys.readouterr().out
