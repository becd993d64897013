"""Logs in every dialect, our own and published ones, with the right rows and figures."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from busbar.errors import ReportError
from reports.readers.reading import read
from reports.records.measurement import Measurement
from tests.conftest import thorough
from tests.once import once
from tests.reports import sample_logs as own
from tests.reports.sample_logs import Figure

_ROOT = os.environ.get("BUSBAR_SAMPLES")
PUBLIC = Path(_ROOT) / "logs" if _ROOT else None
OURS = once("logs", own.write)

# file: rows, tables, collective, ranks; then (size, placement, us, algbw, busbw) to be found
EXPECTED: dict[str, tuple[int, int, str, int | None, list[Figure]]] = {
    "PerfKitBenchmarker_nccl_output_L1.txt": (22, 1, "allreduce", 2, [
        (1048576, "out", 2410.0, 0.44, 0.44), (1073741824, "in", 1763386, 0.61, 0.61)]),
    "aws_do_eks_README_L172.txt": (62, 1, "allreduce", 2, [
        (4, "out", 98.77, 0, 0), (1073741824, "in", 541545, 1.98, 1.98)]),
    "aws_do_eks_README_L237.txt": (62, 1, "allreduce", 2, [
        (4, "out", 70.19, 0, 0), (268435456, "in", 94708, 2.83, 2.83)]),
    "awsome_distributed_training_README_L268.txt": (14, 1, "allreduce", 16, [
        (67108864, "out", 996.0, 67.38, 126.33), (2147483648, "in", 9195.2, 233.54, 437.89)]),
    "cluster_toolkit_README_L113.txt": (62, 1, "", 16, [
        (256, "out", 86.95, 0, 0), (8589934592, "in", 42630.7, 201.50, 188.90)]),
    "cscs_docs_index_L57.txt": (16, 1, "allreduce", 2, [
        (1048576, "out", 339.61, 3.09, 3.09), (134217728, "in", 5867.43, 22.88, 22.88)]),
    "deepops_nvidia_network_operator_L241.txt": (60, 1, "allreduce", 16, [
        (8, "out", 38.63, 0, 0), (4294967296, "in", 42677, 100.64, 188.70)]),
    "dranet_README_L356.txt": (48, 1, "", 2, [
        (1024, "out", 21.75, 0.05, 0.02), (8589934592, "in", 128890, 66.65, 33.32)]),
    "dranet_gke_rdma_L351.txt": (48, 1, "", 16, [
        (1024, "out", 280.4, 0, 0), (8589934592, "in", 31063, 276.53, 259.25)]),
    "dranet_mpi_operator_L209.txt": (48, 1, "allreduce", 2, [
        (1024, "in", 30.61, 0.03, 0.03), (8589934592, "out", 269368, 31.89, 31.89)]),
    "dranet_nvidia_dranet_L261.txt": (16, 1, "", 2, [
        (67108864, "in", 92.39, 726.37, 363.19), (8589934592, "in", 7613.3, 1128.28, 564.14)]),
    "dranet_nvidia_dranet_L503.txt": (56, 1, "", 2, [
        (32, "out", 14.18, 0, 0), (1073741824, "in", 11892, 90.29, 45.14)]),
    "dstack_gcp_L498.txt": (22, 1, "", 16, [
        (8388608, "out", 784.9, 10.69, 10.02), (8589934592, "in", 160117, 53.65, 50.29)]),
    "nccl_eBPF_allgather_default_vs_simple_L33.txt": (16, 1, "allgather", 2, [
        (1048576, "out", 2189.16, 0.48, 0.24), (134217728, "in", 61013.2, 2.20, 1.10)]),
    "nccl_eBPF_default_suboptimal_search_L848.txt": (50, 1, "allreduce", 2, [
        (8, "in", 4310.58, 0, 0), (134217728, "out", 57980.0, 2.31, 2.31)]),
    "nccl_tests_README_L143.txt": (10, 1, "allreduce", 96, [
        (536870912, "out", 2984.6, 179.88, 356.01), (8589934592, "in", 44094, 194.81, 385.56)]),
    "oci_hpc_oke_running_nccl_rccl_tests_from_slurm_operator_L849.txt": (8, 1, "allreduce", 16, [
        (1073741824, "out", 10887.4, 98.62, 184.92), (8589934592, "in", 84992.3, 101.07, 189.50)]),
    "panlichen_full_nccl_mpi_scripts_mpi_res_4hosts_nccl_all_reduce0.txt": (
        25, 25, "allreduce", 32, [
            (64, "out", 55.57, 0, 0), (1073741824, "out", 515875, 2.08, 4.03)]),
    "panlichen_full_nccl_mpi_scripts_result_with_algo_topo_info.txt": (6, 6, "allreduce", 32, [
        (64, "out", 413.6, 0, 0), (128, "out", 336.0, 0, 0), (1024, "out", 289.8, 0, 0.01)]),
    "superbenchmark_nccl_allreduce_L1.txt": (68, 1, "allreduce", 8, [
        (4, "in", 35.30, 0, 0), (134217728, "in", 1162.5, 115.46, 202.05)]),
    "superbenchmark_nccl_broadcast_L1.txt": (68, 1, "broadcast", 8, [
        (4, "in", 33.80, 0, 0), (134217728, "in", 670.0, 200.34, 200.34)]),
    "superbenchmark_nccl_reducescatter_L1.txt": (68, 1, "reduce_scatter", 8, [
        (32, "out", 35.06, 0, 0), (134217728, "in", 615.2, 218.18, 190.90)]),
}  # fmt: skip
# These have a table's header and not one figure.
EMPTY = {
    "cluster_toolkit_README_L38.txt": "XXXXX",
    "yccl_test2_with_debug_info.txt": "no row below",
}


def _each(own_names: Iterable[str], public_names: Iterable[str]) -> pytest.MarkDecorator:
    """The logs of our own, and the public ones where they are given."""
    paths = [OURS / name for name in own_names]
    public = [PUBLIC / name for name in public_names] if PUBLIC else []
    return pytest.mark.parametrize("path", [*paths, *thorough(*public)], ids=lambda p: p.stem)


def _table(path: Path) -> tuple[int, int, str, int | None, list[Figure]]:
    return (own.EXPECTED if path.parent == OURS else EXPECTED)[path.name]


@pytest.mark.parametrize("public", [False, *thorough(*([True] if PUBLIC else []))])
def test_every_sample_is_named_here(public: bool) -> None:
    """Rule: a log added to the samples is not passed over."""
    folder, tables = (PUBLIC, (EXPECTED, EMPTY)) if public else (OURS, (own.EXPECTED, own.EMPTY))
    assert folder is not None
    assert {f.name for f in folder.glob("*.txt")} == {name for table in tables for name in table}


def _one(rows: list[Measurement], size: int, placement: str) -> Measurement:
    return next(r for r in rows if (r.size, r.placement) == (size, placement))


@_each(own.EXPECTED, EXPECTED)
def test_a_log_has_its_rows_and_figures(path: Path) -> None:
    """Rule: every row of both placements is read, with what the log says of it."""
    count, tables, collective, ranks, figures = _table(path)
    rows = list(read(path).rows)
    assert len(rows) == count
    assert len({r.run.number for r in rows}) == tables
    assert {r.collective for r in rows} == {collective} and {r.ranks for r in rows} == {ranks}
    for size, placement, us, algbw, busbw in figures:
        row = _one(rows, size, placement)
        assert row.time_s == pytest.approx(us * 1e-6)
        assert row.algbw_bytes_per_s == pytest.approx(algbw * 1e9)
        assert row.busbw_bytes_per_s == pytest.approx(busbw * 1e9)


@_each(own.EXPECTED, EXPECTED)
def test_sizes_and_lines_agree_with_the_file(path: Path) -> None:
    """Rule: the line of a row is the line on which its size stands."""
    lines = path.read_text().split("\n")
    for row in read(path).rows:
        assert str(row.size) in lines[row.line - 1].replace(">:", " ").split()


@_each(own.EMPTY, EMPTY)
def test_a_log_without_figures_is_one_error(path: Path) -> None:
    """Rule: no figure is made up; the error names the file, what was in the way and where."""
    with pytest.raises(ReportError, match=(own.EMPTY | EMPTY)[path.name]) as error:
        read(path)
    assert path.name in str(error.value) and "line" in str(error.value)


PUBLISHED = (
    "oci_hpc_oke_running_nccl_rccl_tests_from_slurm_operator_L849.txt",
    "deepops_nvidia_network_operator_L241.txt",
    "PerfKitBenchmarker_nccl_output_L1.txt",
    "panlichen_full_nccl_mpi_scripts_result_with_algo_topo_info.txt",
)


@pytest.mark.parametrize("public", [False, *thorough(*([True] if PUBLIC else []))])
def test_what_a_log_says_beside_the_figures(public: bool) -> None:
    """Rule: hosts, devices, library, iterations, wrong counts and old errors are kept."""
    names = PUBLISHED if public else (own.TODAY, own.OLD, own.UNCHECKED, own.KILLED)
    today, old, unchecked, killed = (
        read((PUBLIC if public and PUBLIC else OURS) / name) for name in names
    )
    row = today.rows[0]
    assert row.run.devices == ("NVIDIA A100-SXM4-40GB" if public else "NVIDIA H100",)
    assert len(row.run.hosts) == 2
    assert row.run.library == "NCCL 2.29.3+cuda13.1" and row.iterations == 100 and row.wrong == 0
    assert row.run.version.startswith("nccl-tests version 2.17.9")
    assert old.rows[0].wrong is None and old.rows[0].error == 2e-7
    assert unchecked.rows[0].wrong is None and unchecked.rows[0].error is None
    assert any("8192 B not read" in n.text for n in killed.notes)
