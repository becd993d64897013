"""``cost`` with predictions, and ``fit``: what they print, write, and refuse."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from collectives.predict.fit import read_fit
from collectives.schedule.catalogue import algorithms
from tests.collectives.predict.test_fit import measured
from tests.conftest import collectives_cli
from topology.sources import own_json

COST = ("cost", "-c", "allreduce", "-n", "16", "-b", "1M", "-e", "64M", "-f", "4")


def test_every_algorithm_has_counts_times_and_rates() -> None:
    """Rule: one row an algorithm in each of the three tables, the best marked, and where from."""
    status, out, _ = collectives_cli(*COST)
    assert status == 0
    for name in algorithms("allreduce"):
        assert sum(line.startswith(f" {name} ") for line in out.splitlines()) == 3, name
    assert "predicted time" in out and "predicted busbw" in out and "one-port bound" in out
    assert "\nbest: " in out and "12.5 GB/s" in out and "assumed" in out


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no line is longer than the terminal, and no number is folded."""
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = collectives_cli(*COST[:-2])
    tables = [line for line in out.splitlines() if not line.startswith(("costs", "*"))]
    assert max(map(len, tables)) <= width
    assert sum(line.split()[:1] == ["ring"] for line in tables) >= 3


def test_several_names_stand_in_one_table() -> None:
    """Rule: names with commas between are costed beside each other; one that is none is named."""
    _, out, _ = collectives_cli("cost ring,ps -c allreduce -n 4")
    rows = [line.split()[0] for line in out.splitlines() if line[:2] in (" r", " p")]
    assert rows == ["ring", "ps"]
    status, out, err = collectives_cli("cost ring,pss -c allreduce")
    assert (status, out) == (2, "") and "no algorithm 'pss'" in err and err.count("\n") == 1


@pytest.mark.filterwarnings("error")
def test_sizes_that_move_nothing_have_no_rate() -> None:
    """Rule: where no rank has a whole element there is no time, no best and no infinity."""
    asked = ("cost", "-c", "alltoall", "-n", "3", "-b", "1")
    status, out, err = collectives_cli(*asked, "-e 32")
    assert (status, err) == (0, "")
    assert "nothing is moved at these sizes" in out and "inf" not in out and "*" not in out
    # Neither is there a bound, which would be above the predictions.
    _, out, _ = collectives_cli("cost ring -c allgather -n 8 -b 64 -e 128")
    assert re.search(r"^ one-port bound +- +42 us", out, re.MULTILINE)
    rows = json.loads(collectives_cli("cost ring -c allreduce -b 2 -e 4 --format json")[1])["rows"]
    assert [(row["predicted_s"] > 0, row["bound_s"] > 0) for row in rows] == [
        (False,) * 2,
        (True,) * 2,
    ]
    _, out, _ = collectives_cli(*asked, "-e 64 --format json")
    rows = json.loads(out)["rows"]
    assert {row["size"] for row in rows if row["best"]} == {64}
    assert all(row["busbw_bytes_per_s"] is None for row in rows if row["size"] < 48)
    # The best is that of the first size at which something is moved.
    _, out, _ = collectives_cli("cost -c allgather -n 8 -b 8 -e 1K")
    assert "best: doubling" in out.splitlines()


def test_csv_and_json_say_the_same() -> None:
    """Rule: both forms have a row an algorithm and size, the same numbers, and one best."""
    rows = list(csv.DictReader(io.StringIO(collectives_cli(*COST, "--format csv")[1])))
    document = json.loads(collectives_cli(*COST, "--format json")[1])
    assert len(rows) == len(document["rows"]) == 4 * len(algorithms("allreduce"))
    for a, b in zip(rows, document["rows"], strict=True):
        assert a["algorithm"] == b["algorithm"] and float(a["predicted_s"]) == b["predicted_s"]
        assert b["predicted_s"] >= b["bound_s"] * (1 - 1e-9)
        rate = 2 * 15 / 16 * b["size"] / b["predicted_s"]
        assert b["busbw_bytes_per_s"] == pytest.approx(rate)
    assert {r["size"] for r in document["rows"] if r["best"]} == {1 << k for k in (20, 22, 24, 26)}
    assert document["notes"]


def test_a_fit_is_written_and_used(tmp_path: Path) -> None:
    """Rule: fit writes what cost reads; the figures are those of the measurement."""
    matrix, fit = tmp_path / "m.json", tmp_path / "fit.json"
    matrix.write_text(own_json.dump(measured()))
    status, out, _ = collectives_cli("fit", str(matrix), "--out", str(fit))
    assert status == 0 and "2 ranks over mpi" in out and "95 %" in out
    assert float(read_fit(fit).costs[0].links["node"].trip(8)) == pytest.approx(2e-6, rel=0.01)
    command = "cost ring -c allgather -n 2 -b 1M -e 1M --format json --fit"
    status, out, _ = collectives_cli(command, str(fit))
    (row,) = json.loads(out)["rows"]
    # start, α, and β times half of the vector
    assert row["predicted_s"] == pytest.approx(5e-6 - 2.8e-9 + 2e-6 + 1e-10 * (1 << 19), rel=1e-3)


@pytest.mark.parametrize("transport", ["mpi", "shm"])
def test_a_swept_map_costs_what_its_fit_costs(transport: str, tmp_path: Path) -> None:
    """Rule: with ``--topology`` alone a map's sweep is fitted, as ``fit`` does.

    Between hosts no memory is shared, so for more ranks it counts as messages.
    """
    matrix, fit = tmp_path / "m.json", tmp_path / "fit.json"
    matrix.write_text(own_json.dump(measured(transport=transport)))
    assert collectives_cli("fit", str(matrix), "--out", str(fit))[0] == 0
    command = "cost ring,ps -c allreduce -n 2 -b 1K -e 1M -f 32 --format csv"
    alone = collectives_cli(command, "--topology", str(matrix))
    assert alone == collectives_cli(command, "--fit", str(fit)) and alone[0] == 0
    status, out, _ = collectives_cli("cost ring -c allreduce -n 4", "--topology", str(matrix))
    assert status == 0
    assert "costs: network: latency 14 us" in out and "measured with 2 ranks, not with 4" in out


def test_without_ranks_those_of_grid_map_or_fit(tmp_path: Path) -> None:
    """Rule: without ``-n`` the ranks are the grid's, the map's or the fit's, and a line says whose.

    A number that a file or the grid has would otherwise be replaced by a default without notice.
    """
    matrix, fit = tmp_path / "m.json", tmp_path / "fit.json"
    matrix.write_text(own_json.dump(measured()))
    assert collectives_cli("fit", str(matrix), "--out", str(fit))[0] == 0
    for words, ranks, whose in (
        (("cost torus -c allreduce --grid 2x3",), 6, "those of the grid"),
        (("cost ring -c allreduce --topology", str(matrix)), 2, "those of the map"),
        (("cost ring -c allreduce --fit", str(fit)), 2, "those of the fit"),
        (("cost ring -c allreduce",), 8, "the default"),
    ):
        status, out, err = collectives_cli(*words)
        assert (status, err) == (0, "") and f"allreduce on {ranks} ranks" in out
        assert f"ranks: {ranks}, {whose}; -n" in out, words
    _, out, _ = collectives_cli("cost ring -c allreduce -n 4 --fit", str(fit))
    assert "allreduce on 4 ranks" in out and "ranks: 4" not in out


def test_the_sizes_of_cost_are_those_of_a_sweep() -> None:
    """Rule: ``-b`` alone goes to 1G as ``busbar allreduce`` has it, and is refused above that."""
    command = "cost ring -c allreduce -n 4 --format json -b"
    rows = json.loads(collectives_cli(f"{command} 256M")[1])["rows"]
    assert [row["size"] for row in rows] == [256 << 20, 512 << 20, 1 << 30]
    status, out, err = collectives_cli(f"{command} 2G")
    assert (status, out) == (2, "") and "-b 2 GiB is above -e 1 GiB" in err


@pytest.mark.parametrize("latency", ["", " --fit"])
def test_ps_stands_beside_a_ring(latency: str, tmp_path: Path) -> None:
    """Rule: with ps and ring, cost says their ratio by time, and by bytes through a port.

    Without measured bursts, latencies add up at a port, unlike in simulate; the output says so.
    """
    fit = tmp_path / "fit.json"
    words = [f"cost tree,ring,ps -c allreduce -n 2 -b 64K -e 64M{latency}"]
    if latency:
        matrix = tmp_path / "m.json"
        matrix.write_text(own_json.dump(measured()))
        assert collectives_cli("fit", str(matrix), "--out", str(fit))[0] == 0
        words.append(str(fit))
    text = " ".join(collectives_cli(*words)[1].split())
    rows = json.loads(collectives_cli(*words, "--format json")[1])["rows"]
    at = {row["algorithm"]: row["predicted_s"] for row in rows if row["size"] == 64 << 20}
    assert f"ps takes {at['ps'] / at['ring']:.3g} times as long as ring at 64 MiB on 2" in text
    assert "by bytes through the busiest port, with one port a rank, 2 times" in text
    assert ("no bursts measured" in text) == (not latency)
    assert "ps takes" not in collectives_cli("cost ring,tree -c allreduce -n 2 -b 1M")[1]


@pytest.mark.parametrize(("size", "shares"), [("512", (99, 100)), ("1M", (14, 57)), ("64M", ())])
def test_latency_is_named_where_it_is_why_ps_is_not_p_times(
    size: str, shares: tuple[int, ...]
) -> None:
    """Rule: where ps over ring is not the ratio of bytes because of latency, the line says so.

    On the assumed network a message takes 14 us: 14 of them, and bytes at 12.5 GB/s.
    """
    text = " ".join(
        collectives_cli(f"cost ps,ring -c allreduce -n 8 -b {size} -e {size}")[1].split()
    )
    assert ("the difference is latency" in text) == bool(shares)
    if shares:
        server, ring = re.findall(r"latency, (\d+)% of the time of ps and (\d+)% of", text)[0]
        assert int(server) == pytest.approx(shares[0], abs=1)
        assert int(ring) == pytest.approx(shares[1], abs=1)


def test_what_bursts_change_is_not_called_latency(tmp_path: Path) -> None:
    """Rule: where messages in a burst cost less, ps over ring is another one at any size."""
    matrix, fit = tmp_path / "m.json", tmp_path / "fit.json"
    matrix.write_text(own_json.dump(measured()))
    assert collectives_cli("fit", str(matrix), "--out", str(fit))[0] == 0
    text = collectives_cli("cost ps,ring -c allreduce -n 4 -b 64M -e 64M --fit", str(fit))[1]
    assert "ps takes" in text and "the difference is latency" not in text


def test_a_topology_says_the_classes(tmp_path: Path) -> None:
    """Rule: with a machine, links are classed by it, and what was assumed is said."""
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
        f"GPU{i}\t"
        + "\t".join("X" if i == j else "NV2" if i // 2 == j // 2 else "SYS" for j in range(4))
        + "\n"
        for i in range(4)
    )
    file = tmp_path / "topo.txt"
    file.write_text(text)
    status, out, _ = collectives_cli(*COST[:3], "-n 8 -b 1M --topology", str(file))
    assert status == 0
    for said in ("costs: NV2: latency 3.4 us", "costs: SYS: latency 5.7 us", "on 2 such nodes"):
        assert said in out
    assert "costs: network" in out
