"""``python -m collectives simulate``: what it prints and draws, files as algorithms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from busbar.canvas import colour_of
from collectives.formats.load import load
from collectives.formats.msccl import write
from collectives.predict.named import build_network
from collectives.schedule.catalogue import algorithms, draft, spec
from tests.collectives.msccl_files import exported
from tests.collectives.predict.predicting import simulate
from tests.collectives.predict.test_fit import measured
from tests.conftest import collectives_cli
from topology.model.topology import Kind, Topology
from topology.sources import own_json


def said(*arguments: str) -> tuple[int, str, str]:
    """Exit status and what went to standard output and standard error."""
    return collectives_cli("simulate", *arguments)


def test_a_torus_on_a_fat_tree_with_its_drawing(tmp_path: Path) -> None:
    """A 64x64 torus on a fat tree: ranks follow from the grid; the drawing is whole."""
    pytest.importorskip("matplotlib")
    target = tmp_path / "loads.svg"
    command = ("torus", "--grid", "64x64", "--machine", "fattree:64x64:taper=2", "-b", "1M")
    status, out, err = said(*command, "--svg", str(target))
    assert (status, err) == (0, f"drawn to {target}\n")
    assert "allreduce on 4096 ranks, fat tree 64x64 taper 2, 1 MiB" in out
    assert "rank 0 → switch 0" in out
    assert target.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert [path.name for path in tmp_path.iterdir()] == ["loads.svg"]


def test_time_and_rates_are_those_of_the_simulation() -> None:
    """Time, algbw and busbw of the table; the busiest link's share of the time."""
    _, out, _ = said("ring -n 4 --machine ring:4:gbs=10:latency_us=0 -b 1M")
    row = next(line for line in out.splitlines() if line.startswith(" ring"))
    seconds = 6 * 2**18 / 10e9
    assert row.split()[:5] == [
        "ring", f"{seconds * 1e6:.4g}", "us", f"{2**20 / seconds / 1e9:.4g}", "10",
    ]  # fmt: skip
    # The all-gather goes round the other way: every link carries half of it and is busy half the
    # time.
    assert re.search(r"rank 0 → rank 1 +8 +768 KiB +50\.0%", out)


@pytest.mark.parametrize(
    ("arguments", "links"),
    [
        ("ring -n 8 --machine fattree", "links 25 GB/s, 0.5 us"),
        ("ring -n 8 --machine ring:gbs=0.001:latency_us=0", "links 0.001 GB/s, 0 us"),
        ("ring --machine nvswitch:nodes=2", "links 50 to 450 GB/s, 0.5 to 1.5 us"),
        ("ring --machine dragonfly:taper=2 --sweep n -n 2,64", "links 12.5 to 25 GB/s, 0.5 us"),
    ],
)
def test_the_title_says_what_links_are_assumed(arguments: str, links: str) -> None:
    """Rule: no time without the rate and latency it depends on, defaults included."""
    status, out, _ = said(*arguments.split())
    title = " ".join(out.partition("algorithm")[0].partition(" ranks ")[0].split())
    assert status == 0 and links in title and out.count("; links ") == 1


@pytest.mark.parametrize("machine_", ["dgx1", "ring:8:gbs=9999:latency_us=0.1", "full:gbs=0.001"])
def test_a_sweep_fits_a_terminal(machine_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: at 80 columns no number is folded or cut, however small or large rates are."""
    monkeypatch.setenv("COLUMNS", "80")
    sweep = ("--sweep", "b", "-b", "1", "-e", "1G")
    _, out, _ = said("ring -n 8 --machine", machine_, *sweep)
    rows = [line for line in out.splitlines() if re.match(r" \S+ (B|[KMG]iB) ", line)]
    assert len(rows) == 16 and max(map(len, out.splitlines())) <= 80
    assert all(len(row.split()) == 9 for row in rows)


def test_a_machine_says_how_many_ranks() -> None:
    """Without -n and grid all places are taken; several algorithms stand in one table."""
    _, out, _ = said("ring,ps --machine dgx1")
    assert "allreduce on 8 ranks, dgx1" in out
    assert re.search(r"^ ps ", out, re.MULTILINE)


def test_no_line_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: at 80 columns lines below the tables are not broken by the terminal."""
    wide = said("ring,ps --machine full:4 -b 64K")[1]
    monkeypatch.setenv("COLUMNS", "80")
    narrow = said("ring,ps --machine full:4 -b 64K")[1]
    for out in (wide, narrow):
        below = out[out.index("algbw, busbw: GB/s.") :].splitlines()
        assert max(map(len, below)) <= 80
    assert wide[wide.index("algbw, busbw:") :] == narrow[narrow.index("algbw, busbw:") :]


@pytest.mark.parametrize("over", ["n", "b"])
def test_sweeps(over: str, tmp_path: Path) -> None:
    """Over rank counts up to a power of two, or sizes up to -e; the plot says what was swept."""
    pytest.importorskip("matplotlib")
    target = tmp_path / ("sweep.png" if over == "n" else "sweep.svg")
    extra = ("-b", "1K", "-e", "64K") if over == "b" else ("-b", "1K")
    command = ("ring,recursive_doubling", "--machine", "torus", "-n", "16", "--sweep", over, *extra)
    status, out, err = said(*command, "--svg", str(target))
    assert status == 0, err
    labels = ["2", "4", "8", "16"] if over == "n" else ["1 KiB", "4 KiB", "16 KiB", "64 KiB"]
    for label in labels:
        assert out.count(f"\n {label} ") == 2
    if over == "n":
        assert target.read_bytes().startswith(b"\x89PNG")
    else:
        text = target.read_text(encoding="utf-8")
        assert "allreduce, 16 ranks, simulated on torus" in text


def test_an_algorithm_has_the_colour_of_other_figures(tmp_path: Path) -> None:
    """Rule: a figure of simulations has the colours of `reports plot`, so that figures compare."""
    pytest.importorskip("matplotlib")
    target = tmp_path / "sweep.svg"
    status, _, err = said(
        *["tree,ring,ps", "--machine", "fattree", "-n", "8", "--sweep", "n", "--svg"], str(target)
    )
    assert status == 0, err
    text = target.read_text(encoding="utf-8").lower()
    assert all(colour.lower() in text for colour in colour_of(("tree", "ring", "ps")).values())


def test_a_sweep_passes_over_rank_counts_that_do_not_go() -> None:
    """A count that an algorithm refuses is a line on standard error; none at all is an error."""
    command = ("recursive_doubling", "--machine", "ring", "--sweep", "n", "-n")
    status, out, err = said(*command, "3-4")
    assert status == 0
    assert "on 3 ranks: recursive_doubling needs a power of two" in err
    assert "\n 4 " in out
    status, out, err = said(*command, "5-7")
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_file_that_is_no_map(tmp_path: Path) -> None:
    """A machine's file is named with what is wrong with it."""
    file = tmp_path / "map.json"
    file.write_text("{}")
    status, _, err = said("ring --machine", str(file))
    assert status == 2
    assert "map.json" in err and err.count("\n") == 1
    status, _, err = said("ring --machine", str(tmp_path / "no.json"))
    assert status == 2
    assert "no.json: no such file" in err and err.count("\n") == 1


def test_latency_is_the_reason_where_it_is_most_of_the_time() -> None:
    """Rule: a line names the share of latency above half; where bytes decide there is none."""
    _, out, _ = said("ring --machine fattree:4 -b 64K")
    share = re.search(r"^ ring .* ([0-9]+%) +[0-9]+% +[0-9]+% *$", out, re.MULTILINE)
    assert share is not None
    assert f"latency is {share[1]} of the time of ring at 64 KiB on 4 ranks: such" in out
    _, out, _ = said("ring --machine fattree:4 --sweep b -b 1K -e 64M -f 16")
    text = " ".join(out.split())
    assert "of ring at 1 KiB on 4 ranks, and more than half in 2 of 5 rows" in text
    for line in ("ring --machine fattree:4 -b 64M", "tree -c barrier --machine fattree:4"):
        assert "latency is" not in said(line)[1]


def test_parts_without_time_have_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: at 80 columns no algorithm's name is folded; what takes time has its column."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = said("all --machine fattree:8 -b 1K")
    assert max(map(len, out.splitlines())) <= 80
    for name in algorithms("allreduce"):
        assert re.search(rf"^ {name} .*%", out, re.MULTILINE), name
    _, out, _ = said("ring --machine fattree:4:overhead_us=1:add_gbs=10")
    assert re.search(r"busbw +post +latency +wire +sharing +adding", out)
    assert (
        "Column links: how many have the same rate" in out and max(map(len, out.splitlines())) <= 80
    )


def test_files_that_other_commands_read_are_named(tmp_path: Path) -> None:
    """Rule: a fit, and a map without ranks, are refused with the command that takes them."""
    fit, cores = tmp_path / "fit.json", tmp_path / "cores.json"
    fit.write_text('{\n "busbar_fit": 1, "costs": []}')
    status, _, err = said("ring --machine", str(fit))
    assert status == 2 and "a fit of link costs" in err and "collectives cost --fit" in err
    whole = measured()
    cores.write_text(
        own_json.dump(Topology(tuple(d for d in whole.devices if d.kind != Kind.RANK)))
    )
    status, _, err = said("ring --machine", str(cores))
    assert (status, err.count("\n")) == (2, 1)
    assert "topology measure -o MAP.json" in err and "collectives cost --topology" in err


def test_more_ranks_than_a_map_has(tmp_path: Path) -> None:
    """Rule: a map is copied for more ranks, which is said once; without -n it has its own."""
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(measured()))
    status, out, _ = said("ring", "--machine", str(file))
    assert status == 0 and "allreduce on 2 ranks" in out and "copies" not in out
    status, out, _ = said("ring", "-n", "8", "--machine", str(file))
    text = " ".join(out.split())
    assert status == 0 and "allreduce on 8 ranks" in text
    assert "has 2 ranks; more ranks are on copies of it, and between copies: latency 14 us" in text
    assert "each pair of ranks has its own measured times" in text
    assert max(map(len, out.splitlines()[-6:])) <= 80
    _, out, _ = said("ring --sweep n -n 16 --machine", str(file))
    assert " ".join(out.split()).count("on copies of it") == 1


def test_an_imported_schedule_is_simulated_like_our_own(tmp_path: Path) -> None:
    """A ring that went through a file takes what the ring takes; the file says how many ranks."""
    file = tmp_path / "ring.xml"
    file.write_bytes(write(exported("allreduce", "ring", 8)))
    made = build_network("torus:4x2:add_gbs=20", 8)
    what = spec("allreduce")
    back = simulate(load(file, "allreduce", 8), what, made, 10**6)
    ours = simulate(draft("allreduce", "ring", 8), what, made, 10**6)
    assert back.seconds == pytest.approx(ours.seconds, rel=1e-9)
    assert back.link_bytes == pytest.approx(ours.link_bytes)
    status, out, _ = said(str(file), "--machine torus:4x2:add_gbs=20 -b 1000000")
    assert status == 0
    assert "allreduce on 8 ranks" in out
    assert said(str(file), "--machine torus:2x2")[0] == 2
    status, out, _ = collectives_cli("cost", str(file))
    assert status == 0 and "14" in out
