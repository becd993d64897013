"""Whole runs on stand-in GPUs: which GPU, what is refused, what tables and records say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.cli import ranks as cli_ranks
from bench.cli import start
from busbar.errors import ProbeError, Unavailable
from collectives.execution.gpu import take
from collectives.execution.gpu.take import count_gpus
from collectives.execution.nccl.debug_log import parse
from tests.conftest import good, in_process, table_rows
from tests.gpu_standin import Cupy, Machine
from tests.nccl_standin import Communicator, Nccl

SMALL = ["-b", "1K", "-e", "2K", "-n", "3"]
Here = Callable[..., Machine]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """``here(gpus=…)``: as if this machine had so many GPUs, CuPy and NCCL."""

    def made(**given: Any) -> Machine:
        machine = Machine(**given)
        cupy, nccl = Cupy(machine), Nccl(machine)
        monkeypatch.setattr(take, "load_cupy", lambda: cupy)
        monkeypatch.setattr(take, "load_nccl", lambda: nccl)
        monkeypatch.setattr(take, "driver_here", lambda: True)
        for name in ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_MAX_CTAS", "NCCL_HOSTID"):
            monkeypatch.delenv(name, raising=False)
        return machine

    return made


def _records(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The environment that a file begins with, and its rows."""
    first, *rows, _ = [json.loads(line) for line in file.read_text().splitlines()]
    return first["environment"], rows


def test_threads_take_the_gpus_with_no_flag(here: Here, tmp_path: Path) -> None:
    """Rule: auto takes the GPUs; ours and NCCL's rows are right, on the GPUs by number."""
    here(gpus=4)
    file = tmp_path / "run.jsonl"
    out = good(in_process("allreduce", "--threads 4", *SMALL, "--out", str(file)))
    rows = table_rows(out)
    assert len(rows) == 10 and all(row[8] == row[12] == "0" for row in rows)
    for name in ("ring", "tree", "torus", "ps", "library"):
        assert f"allreduce {name} (nccl)" in out
    assert "NCCL 2.32.3" in out and "device  3 [0000:0a:00] Stand-in GPU" in out
    environment, _ = _records(file)
    assert environment["mapping"]["gpu"] == [f"0000:{7 + n:02x}:00.0" for n in range(4)]
    facts = environment["transport"]
    assert facts["nccl"] == "2.32.3" and facts["cupy"] == "14.2.0" and len(set(facts["uuids"])) == 4


def test_timed_iterations_are_not_checked_on_gpus(here: Here) -> None:
    """Rule: --check timed is refused on GPUs with what there is instead, and -c N checks N more."""
    here(gpus=2)
    status, out, err = in_process("allreduce", "--threads 2 -c timed", *SMALL)
    assert status == 2 and not table_rows(out)
    assert "on GPUs -c N checks N more" in err and err.count("\n") == 1
    rows = table_rows(good(in_process("allreduce", "--threads 2 -c 3", *SMALL)))
    assert rows and all(row[8] == row[12] == "0" for row in rows)


def test_the_line_of_nccl_tests_runs(here: Here) -> None:
    """Rule: -b 8 -e … -g 3 is three GPUs of one process, right with less than an element a rank."""
    here(gpus=3)
    status, out, err = in_process("allreduce", "-b 4 -e 16 -n 2 -g 3")
    rows = table_rows(out)
    assert status == 0, out + err
    assert len(rows) >= 12 and all(row[8] == row[12] == "0" for row in rows)


def test_collectives_through_the_whole_benchmark(here: Here) -> None:
    """Rule: what is filled, measured and checked on a GPU is right, 16- and 8-bit floats too."""
    here(gpus=3)
    small = ["--threads", "3", "-b", "1K", "-e", "1K", "-n", "1"]
    for name in ("allreduce", "alltoallv", "reduce_scatter", "broadcast"):
        out = good(in_process(name, *small, "-d bfloat16,f8e5m2"))
        rows = table_rows(out)
        assert len(rows) >= 4 and all(row[8] == "0" for row in rows)


def test_average_of_the_library_may_round(here: Here) -> None:
    """Rule: an average by the library is right within two units in the last place, ours exactly."""
    here(gpus=3)
    more = ["-o", "avg", "-d", "half,float", "-A", "ring,library"]
    good(in_process("allreduce", "--threads 3", *SMALL, *more))


def test_gpus_by_their_numbers(here: Here, tmp_path: Path) -> None:
    """Rule: --gpus 3,1 gives rank 0 GPU 3 and rank 1 GPU 1; a GPU that is not there is refused."""
    here(gpus=4)
    file = tmp_path / "run.jsonl"
    in_process("allreduce", "--threads 2 --gpus 3,1", *SMALL, "--out", str(file))
    environment, _ = _records(file)
    assert environment["mapping"]["gpu"] == ["0000:0a:00.0", "0000:08:00.0"]
    status, out, err = in_process("allreduce", "--threads 2 --gpus 3,7", *SMALL)
    assert (status, out) == (2, "")
    assert err == "busbar: --gpus: no GPU 7; this node shows 4: 0 to 3\n"


def test_gpus_that_the_profiler_picks(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: --gpus pick takes topology pick's GPUs, by PCI address, in the order of their ring."""
    here(gpus=4)
    matrix = tmp_path / "topo.txt"
    lines = ["\tGPU0\tGPU1\tGPU2\tGPU3", "GPU0\t X \tSYS\tPIX\tSYS", "GPU1\tSYS\t X \tSYS\tPHB"]
    matrix.write_text("\n".join([*lines, "GPU2\tPIX\tSYS\t X \tSYS", "GPU3\tSYS\tPHB\tSYS\t X "]))
    with pytest.raises(ProbeError, match="PCI address"):
        start.best_gpus(2, [str(matrix)])
    monkeypatch.setattr(start, "best_gpus", lambda k: ["0000:09:00.0", "0000:07:00.0"][:k])
    run = ("allreduce", "--threads", "2", "--gpus", "pick", *SMALL, "-A", "ring")
    out = good(in_process(*run))
    assert "device  2 [0000:09:00]" in out and "device  0 [0000:07:00]" in out
    assert "# GPUs as topology pick ranks them: 0000:09:00.0 0000:07:00.0" in out
    monkeypatch.setattr(start, "best_gpus", lambda k: ["0000:99:00.0"] * k)
    status, _, err = in_process(*run)
    assert status == 2 and err == (
        "busbar: --gpus pick: no GPU at 0000:99:00.0 is visible here; see CUDA_VISIBLE_DEVICES\n"
    )


def test_oversubscribed_the_table_says_so(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --oversubscribe-gpu sets what this NCCL needs, and the table says who shares."""
    machine = here(gpus=1)
    run = ("allreduce", "--threads", "4", "--oversubscribe-gpu", *SMALL)
    out = good(in_process(*run))
    assert "# ranks 0, 1, 2, 3 share GPU" in out
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and os.environ["NCCL_MAX_CTAS"] == "16"
    machine.version = 22900
    status, _, err = in_process(*run)
    assert status == 2 and "NCCL 2.29.0 takes no two ranks" in err and "since 2.30" in err


@pytest.mark.parametrize("more", [[], ["--gpus", "0"]], ids=["picked", "named"])
def test_what_cuda_reads_when_it_starts_is_set_before(
    here: Here, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Rule: streams have queues of their own, and no kernel is loaded at its first launch."""
    here(gpus=1)
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    seen = list[tuple[str | None, ...]]()

    def count(cupy: Any) -> int:
        seen.append(
            (os.environ.get("CUDA_MODULE_LOADING"), os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
        )
        return 1

    monkeypatch.setattr(take, "count_gpus", count)
    monkeypatch.setattr(start, "best_gpus", lambda k: ["0000:07:00.0"])
    run = ("allreduce", "--threads", "1", *SMALL, "-A", "ring")
    assert in_process(*run, *(more or ["--gpus", "pick"]))[0] == 0
    assert set(seen) == {("EAGER", "32")}


@pytest.mark.parametrize("more", [["-g", "1"], ["--threads", "4"]], ids=" ".join)
@pytest.mark.parametrize("transport", ["auto", "nccl"])
def test_one_gpu_explains_itself(
    here: Here, tmp_path: Path, more: list[str], transport: str
) -> None:
    """Rule: on one GPU the table says what its figures are of, against the GPU's own copies."""
    here(gpus=1)
    file = tmp_path / "run.jsonl"
    run = ["-b", "256K", "-e", "256K", "-n", "3", "-A", "one_shot,library", "--limit", "column"]
    flags = [*more, "--transport", transport, "--oversubscribe-gpu", "--out", str(file)]
    out = good(in_process("allreduce", *run, *flags))
    assert "over no link: busbw is a reckoning; % of limit is of what the GPU's own copies" in out
    told = "nothing crosses a link" if more[0] == "-g" else "whose kernels run side by side"
    assert f"# {told}" in out or told in out
    _, rows = _records(file)
    assert len(rows) == 4 and all(row["limit_s"] > 0 for row in rows)
    assert "limit%" in out


def test_auto_goes_on_without_enough_gpus_and_says_why(here: Here) -> None:
    """Rule: auto with fewer GPUs than ranks runs on the host, with a note."""
    here(gpus=1)
    status, out, err = in_process("allreduce", "--threads 2", *SMALL, "-A ring")
    assert status == 0 and "ring (inproc)" in out
    assert err.startswith("busbar: not over nccl: ranks 0, 1 would share one GPU")


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [("", 3), ("--transport nccl", 3), ("--gpus 0,2", 2), ("--transport inproc", 5)],
)
def test_without_a_number_of_ranks_there_is_one_a_gpu(
    here: Here, monkeypatch: pytest.MonkeyPatch, flags: str, ranks: int
) -> None:
    """Rule: where a run uses GPUs, it has by default one rank for each; else one for each core."""
    here(gpus=3)
    monkeypatch.setattr(cli_ranks, "core_share", lambda: 5.0)
    out = good(in_process("allreduce", flags, *SMALL, "--dry-run"))
    assert f" on {ranks} ranks of this host" in out


def test_no_gpu_is_one_line_and_status_3(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: --transport nccl without a GPU: one line on what was found, exit status 3."""
    machine = here(gpus=0)
    run = ("allreduce", "--threads", "2", "--transport", "nccl", *SMALL)
    status, out, err = in_process(*run)
    assert (status, out) == (3, "")
    assert re.fullmatch(r"busbar: no GPU can be used here: .*no CUDA-capable device.*\n", err)
    with pytest.raises(Unavailable, match="no CUDA-capable"):
        count_gpus(Cupy(machine))


@pytest.mark.parametrize("flags", ["-g 1 --ranks 2", "--ranks 2 --transport nccl", "--ranks 2"])
def test_a_dry_run_says_that_the_gpu_is_missing(here: Here, flags: str) -> None:
    """Rule: where the run would end for want of a GPU, its plan says so, and only there."""
    here(gpus=0)
    status, out, err = in_process("allreduce", flags, *SMALL, "--dry-run")
    assert status == 0 and out.startswith("# dry run")
    assert ("without --dry-run this ends with status 3: no GPU" in err) == (flags != "--ranks 2")
    here(gpus=2)
    assert "without --dry-run" not in in_process("allreduce", flags, *SMALL, "--dry-run")[2]


def test_no_cupy_is_one_line_and_status_3() -> None:
    """Rule: --transport nccl without CuPy, or without a driver, under no launcher: the same.

    The remedy fits every way to start ranks.
    """
    for more in ((), ("--threads", "2")):
        status, out, err = in_process("allreduce", "--transport nccl", *more, *SMALL)
        assert (status, out) == (3, "") and err.count("\n") == 1 and err.startswith("busbar: ")
        if not take.driver_here():
            assert err.startswith("busbar: no NVIDIA driver here (no /dev/nvidiactl); ")
            assert err.endswith("--transport nccl) the host is measured\n") and "--ranks" not in err


@pytest.mark.parametrize(
    "more", [["--gpus", "0,1"], ["--gpus", "pick"], ["--oversubscribe-gpu"]], ids=" ".join
)
def test_gpus_that_were_named_are_not_silently_done_without(more: list[str]) -> None:
    """Rule: without a flag a host is measured where no GPU is; asked for GPUs, none is status 3."""
    if take.driver_here():
        pytest.skip("an NVIDIA driver is here")
    status, out, err = in_process("allreduce", "--threads 2", *SMALL, *more)
    assert out == "" and err.count("\n") == 1
    assert status == 3, err
    for host in (["--transport", "shm"], ["--transport", "mpi"], ["--transport", "inproc"]):
        status, out, err = in_process("allreduce", *host, *SMALL, *more)
        assert (status, out) == (2, "") and err.count("\n") == 1
        assert more[0] in err and f"has no effect with {' '.join(host)}" in err


@pytest.mark.parametrize("host", ["shm", "mpi", "inproc"])
def test_no_graph_is_what_hosts_do_anyway(host: str) -> None:
    """Rule: nccl-tests' -G 0 runs on every transport; a graph where there is none is refused."""
    run = ("allreduce", "--threads 2" if host == "inproc" else "--ranks 2", f"--transport {host}")
    status, _, err = in_process(*run, *SMALL, "-G 0", "--dry-run")
    assert status == 0 and "graph" not in err
    status, _, err = in_process(*run, *SMALL, "-G 1", "--dry-run")
    assert status == 2 and f"--graph has no effect with --transport {host}" in err


def test_energy_without_gpus_is_told() -> None:
    """Rule: an option that can have no effect here says so, and the run goes on."""
    status, _, err = in_process("allreduce", "--transport inproc --energy", *SMALL)
    assert status == 0 and err.count("no GPU carries these rows, so no joules are told") == 1


def test_what_does_not_fit_on_a_gpu_is_skipped(here: Here) -> None:
    """Rule: memory is planned for before it is taken, NCCL's own counted, GPU by GPU."""
    here(gpus=2, total=3 << 30)
    big = ["-b", "2G", "-e", "2G", "-A", "ring", "-n", "1"]
    status, out, _ = in_process("allreduce", "--threads 2", *big)
    assert status == 1 and re.search(
        r"# skipped out-of-place at 2147483648 B: 1 rank x .* on GPU 0000:07:00.0 of node 0, which",
        out,
    )


def test_what_the_library_chose_is_shown_and_kept(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: NCCL's choice stands under the library's rows and in their records; its log is ours."""
    machine = here(gpus=2)
    file = tmp_path / "run.jsonl"
    run = ("allreduce", "--threads", "2", *SMALL, "-A", "ring,library", "--out", str(file))
    out = good(in_process(*run))
    assert out.count("# in-place: algorithm ring  protocol ll  channels 4") == 2
    rows = _records(file)[1]
    chosen = ["algorithm" in row.get("library_facts", {}) for row in rows]
    assert chosen == [False] * 4 + [True] * 4
    assert machine.log is not None and not Path(machine.log).exists()
    assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE"} & set(os.environ)
    # A user's own settings of NCCL's output are left alone.
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert "algorithm ring" not in in_process(*run)[1]


def test_the_heading_says_whether_graphs_are_replayed(here: Here) -> None:
    """Rule: nccl-tests' ``graph:`` above a table is what --graph asks for, and -G 0 for none."""
    here(gpus=2)
    for given, said in (("-b 1K", 1), ("-G 0", 0)):
        out = good(in_process("allreduce", "--threads 2 -A ring -e 1K -n 3", "-b 1K", given))
        assert f" validation: 1 graph: {said} unalign: 0" in out


def test_graph_compare_shows_the_difference(here: Here, tmp_path: Path) -> None:
    """Rule: --graph compare shows, and records, what eager iterations and replays take."""
    here(gpus=2)
    file = tmp_path / "run.jsonl"
    run = ("allreduce", "--threads", "2", "--graph", "compare", *SMALL, "--out", str(file))
    out = good(in_process(*run))
    assert re.search(r"^# out-of-place: eager_us [\d.]+  graph_us [\d.]+", out, re.M)
    # On a busy machine a rank may have waited for a core, which is said, too.
    for row in _records(file)[1][:2]:
        facts = set(row["library_facts"])
        assert {"eager_us", "graph_us"} <= facts and not {"algorithm", "eager"} & facts


def test_where_nothing_can_be_captured_plans_run_eagerly(here: Here) -> None:
    """Rule: graphs are used where capture works; where not, all ranks go on without, saying so."""
    machine = here(gpus=2)
    machine.captures = False
    out = good(in_process("allreduce", "--threads 2", *SMALL, "-A ring"))
    assert "graph" not in machine.launched
    assert "# out-of-place: eager rank 0 cannot capture: cudaErrorNotSupported" in out


@pytest.mark.parametrize("splits", [True, False])
def test_every_group_of_a_split_has_its_table(
    here: Here, tmp_path: Path, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: --split groups run at once, each through a communicator of its own; all are reported.

    By ncclCommSplit, or where CuPy has none by a unique id for each group.
    """
    if not splits:
        monkeypatch.delattr(Communicator, "commSplit")
    here(gpus=4)
    file = tmp_path / "run.jsonl"
    more = ["-A", "ring,library", "--out", str(file)]
    run = ("allreduce", "--threads", "4", "--split", "mod:2", *SMALL, *more)
    out = good(in_process(*run))
    assert [line for line in out.splitlines() if line.startswith("# group")] == [
        *["# group 0 of 2: ranks 0 2"] * 2,
        *["# group 1 of 2: ranks 1 3"] * 2,
    ]
    assert len(table_rows(out)) == 8 and all(row[8] == row[12] == "0" for row in table_rows(out))
    for number in (0, 1):
        environment, records = _records(tmp_path / f"run.group{number}.jsonl")
        assert environment["group"]["number"] == number and len(records) == 8


def test_what_nccl_says_it_chose() -> None:
    """Rule: algorithm, protocol and channels are read from NCCL's own lines, the last one's."""
    text = (
        "host:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
        "host:1:1 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128"
        " channel{Lo..Hi}={0..23} cgaClusterSize 4\nnoise\n"
    )
    assert parse(text) == {"algorithm": "ring", "protocol": "ll128", "channels": 24}
    assert parse("nothing") == {}
