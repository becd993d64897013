"""`busbar` for programs and notebooks: rows instead of text, exceptions instead of statuses."""

from __future__ import annotations

import ast
import doctest
import errno
import inspect
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from time import sleep
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import busbar
from bench.api import calls, running
from bench.api.keywords import Collective, OptionKeywords, StepOptionKeywords
from bench.api.machine import ObjectiveName
from bench.api.measured import MeasuredRows
from bench.api.remedies import in_keywords
from bench.launch import child, launch
from bench.launch.child import Ended
from bench.launch.launch import RunProgress, error_messages, parse_progress
from bench.options.options import make_parser, parse
from bench.run.pace import Pace
from bench.run.screen import Screen
from busbar.aliases import ROOMS
from busbar.errors import (
    BusbarError,
    MissingFile,
    ProbeError,
    RankFailure,
    ReportError,
    ScheduleError,
    StoreError,
    Unavailable,
    Unsupported,
)
from busbar.units import SIMULATED, format_seconds
from collectives.schedule import catalogue
from collectives.schedule.digest import digest
from collectives.schedule.moves import moves
from collectives.schedule.passes import pipeline, reverse, then
from collectives.schedule.schedule import Schedule, Step
from reports.exports.formats import CsvLines
from reports.readers.own_exports import to_parquet
from reports.records.measurement import Noise, Window
from tests.conftest import REPO, Mpi, Run, collectives_cli
from tests.reports.runs import allreduce, changed, flat, noisy, records, timed, to_jsonl
from tests.reports.runs import rows as parsed
from topology.placement.pick import Objective

LOG = """\
# nThread 1 nGpus 8 minBytes 65536 maxBytes 65536
# Collective test starting: all_reduce_perf
#  size  count   type  redop  root   time  algbw  busbw  #wrong   time  algbw  busbw  #wrong
  65536  16384  float    sum    -1  28.50   2.30   4.02       0  28.10   2.33   4.08       0
"""
MATRIX = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV2\tPIX\nGPU1\tNV2\t X \tPIX\nGPU2\tPIX\tPIX\t X \n"


def _walk(n: int) -> Schedule:
    """An all-reduce of our own: docs/add-an-algorithm.md."""
    up = Schedule(n, 1, tuple(Step.fixed(moves(i, i + 1, 0, reduce=True)) for i in range(n - 1)))
    return then(up, reverse(up))


def _half(n: int) -> Schedule:
    """An all-reduce whose last step is missing."""
    return replace(_walk(n), steps=_walk(n).steps[:-1])


def _ring(n: int) -> Schedule:
    return _walk(n)


_ring.__name__ = "ring"


def _odd(n: int) -> Schedule:
    raise ValueError("odd counts only")


def _nothing(n: int) -> None:
    """A function that returns no schedule."""


def _chain(n: int, k: int) -> Schedule:
    return pipeline(_walk(n), k)


def test_importing_it_is_instant(run: Run, tmp_path: Path) -> None:
    """Rule: `import busbar` loads nothing but itself; what it offers is listed.

    Rows are read, measured and printed without pandas, matplotlib and MPI.
    """
    code = (
        "import __future__, sys; before = set(sys.modules); import busbar; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}), dir(busbar))"
    )
    done = run(sys.executable, "-c", code)
    listed = [*{*busbar.__all__, *ROOMS}, "__doc__", "__version__", "errors"]
    assert done.stdout == f"['busbar'] {sorted(listed)}\n", done
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl(records(["ring", "tree"], [2], [1024])))
    code = (
        f"import sys, busbar; print(busbar.load({str(path)!r}), file=sys.stderr); "
        "busbar.run(ranks=1, sizes=8, iters=1, algorithms='ring', transport='inproc'); "
        "print([name for name in ('pandas', 'matplotlib', 'mpi4py') if name in sys.modules])"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout == "[]\n" and "next takes" in done.stderr, done
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = busbar.runn


def test_a_run_gives_rows_and_prints_nothing(
    mpich: Mpi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rule: sizes, algorithms and options are what was asked for, and results are right."""
    pytest.importorskip("pandas")
    out = tmp_path / "kept.jsonl"
    rows = busbar.run(
        ranks=2, algorithms=["ring", "ps"], sizes=["3K", 256], iters=6, placement="out", out=out
    )
    assert [(r.algorithm, r.size) for r in rows] == [
        ("ring", 256), ("ring", 3072), ("ps", 256), ("ps", 3072),
    ]  # fmt: skip
    assert rows.wrong == 0 and all(r.ranks == 2 and len(r.times_s) == 6 for r in rows)
    frame = rows.frame()
    assert list(frame["size"]) == [256, 3072, 256, 3072]
    assert list(frame["busbw"] * 1e9) == pytest.approx(list(frame["busbw_bytes_per_s"]))
    units = frame.attrs["units"]
    assert {"busbw", "time_s"} <= units.keys() <= set(frame) and units["busbw"] == "GB/s"
    assert capfd.readouterr() == ("", "")
    assert [r.times_s for r in busbar.load(out)] == [r.times_s for r in rows]


@pytest.mark.parametrize(
    ("collective", "options", "said"),
    [
        ("all_reduce", {}, "did you mean allreduce?"),
        (
            "allreduce",
            {"algorithms": "rign"},
            "algorithms: no algorithm 'rign'; did you mean ring?",
        ),
        ("allreduce", {"algorithms": []}, "algorithms has no items"),
        ("allreduce", {"dtype": "flot"}, "dtype: no data type 'flot'; did you mean float?"),
        ("allreduce", {"placement": ["out", "in"]}, "'in', 'both'); did you mean both?"),
        ("allreduce", {"check": "no"}, "check is True, False, a number"),
        ("broadcast", {"root": 5, "ranks": 2}, "root 5: there are only ranks 0 to 1"),
        ("allreduce", {"sizes": ["1Q"]}, "'1Q' is no size"),
        ("allreduce", {"sizes": [8], "minbytes": "8"}, "sizes excludes minbytes, maxbytes, stepf"),
        ("allreduce", {"placment": "out"}, "did you mean placement?"),
        ("allreduce", {"min_size": "8"}, "did you mean sizes or minbytes?"),
        ("allreduce", {"begin": "8"}, "did you mean minbytes? help(busbar.run) and"),
        ("allreduce", {"end": "8"}, "did you mean maxbytes?"),
        ("allreduce", {"help": True}, "no option 'help'"),
        ("allreduce", {"ranks": [2, 0]}, "0 ranks; at least 1"),
        ("allreduce", {"ranks": "2,two"}, "'two': that is no whole number"),
        ("allreduce", {"ranks": 3.5}, "'3.5': that is no whole number"),
        ("allreduce", {"ranks": []}, "ranks has no items"),
        ("allreduce", {"ranks": range(2), "budget": None}, "0 ranks; at least 1"),
        ("allreduce", {"sizes": []}, "sizes has no items"),
        ("allreduce", {"sizes": (text for text in ("8", "1Q"))}, "'1Q' is no size"),
        ("allreduce", {"sizes": np.array([8, 16]), "algorithms": {"rign"}}, "did you mean ring?"),
        ("allreduce", {"dtype": np.float32, "op": "summ"}, "did you mean sum?"),
        (None, {}, "no collective 'None'"),
        ("allreduce", {"algorithm": "tree"}, "no option 'algorithm'; did you mean algorithms?"),
        ("allreduce", {"algoritms": "tree"}, "did you mean algorithms?"),
        ("allreduce", {"datatype": "half"}, "no option 'datatype'; did you mean dtype?"),
        ("allreduce", {"dtype": "float32", "op": "summ"}, "did you mean sum?"),
        ("step", {}, "busbar.step measures training steps"),
        ("allreduce", {"budget": "x"}, "budget: 'x'"),
        ("allreduce", {"launcher": 5}, "launcher is a command line such as 'srun', not 5"),
        ("allreduce", {"out": 5}, "out is a file or several, not 5"),
        ("allreduce", {"algorithms": 5}, "names and functions are possible, not 5"),
        ("allreduce", {"arrival": "ramp:1", "sync": "barrier"}, "arrival needs sync window"),
        ("allreduce", {"algorithms": lambda n: None}, "'<lambda>' is no name"),
        ("allreduce", {"algorithms": [_ring]}, "a function is called ring"),
        ("allreduce", {"algorithms": [_walk, partial(_walk)]}, "two functions are called _walk"),
        ("allreduce", {"algorithms": _nothing}, "_nothing(2) returned NoneType, not a Schedule"),
        ("allreduce", {"algorithms": _chain}, "_chain(2): missing a required argument: 'k'"),
        ("allreduce", {"algorithms": _walk, "launcher": "srun"}, "give ranks= beside launcher="),
        ("allreduce", {"algorithms": _walk, "root": "all"}, "one root; give root=0"),
        ("pt2pt", {}, "busbar pt2pt --out FILE, then busbar.load(FILE)"),
        ("allreduce", {"dry_run": True}, "busbar.plan says how long a run takes; the command"),
        ("allreduce", {"json": True}, "busbar.run has no json; give out="),
        ("allreduce", {"plot": "x.png"}, "busbar.run has no plot; use rows.plot()"),
        ("allreduce", {"details": True}, "busbar.run has no details; use print(rows)"),
        ("allreduce", {"layout": "nccl"}, "busbar.run has no layout; print(rows) has"),
        ("allreduce", {"per_iter_timing": 1}, "has no per_iter_timing; rows have the times"),
        ("all", {}, "measures one collective; call it for each"),
        ("allreduce", {"algorithms": "ring:segments=2"}, "ring has no parameter 'segments'"),
        ("allreduce", {"algorithms": "recursive_doubling", "ranks": [2, 3]}, "a power of two"),
        ("allreduce", {"launcher": " "}, "launcher is a command line such as 'srun', not ' '"),
        ("allreduce", {"progress": "no"}, "progress is True, False or None, not 'no'"),
        ("allreduce", {"iters": 5, "budget": 1}, "budget limits rows without iters"),
        ("allreduce", {"sizes": ["64Q"]}, "sizes: '64Q' is no size"),
        (
            "allreduce",
            {"dtype": ["half", float]},
            "dtype: Python's float has no size; write",
        ),
        ("allreduce", {"dtype": [np.float32, "flot"]}, "did you mean float?"),
        ("allreduce", {"per_rank": "no"}, "per_rank is True or False, not 'no'"),
        ("allreduce", {"arrival": ["zero", "ramp:5"]}, "arrival is one pattern, 'all' or a file"),
        ("allreduce", {"maxbytes": "1K"}, "minbytes 1 MiB is above maxbytes 1 KiB; give both"),
    ],
)
def test_what_cannot_be_is_an_exception(
    collective: Any, options: dict[str, object], said: str
) -> None:
    """Rule: errors are ours, raised before anything is started."""
    with pytest.raises(Unsupported) as refused:
        busbar.run(collective, **options)
    assert said in str(refused.value) and len(str(refused.value)) < 300
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    ("function", "wrong", "right"),
    [
        (busbar.plan, "algo", "algorithms"),
        (busbar.predict, "algorithm", "algorithms"),
        (busbar.predict, "nranks", "ranks"),
        (busbar.simulate, "size", "sizes"),
        (busbar.compare, "nois", "noise"),
        (busbar.load, "rank", "ranks"),
        (busbar.verify, "roots", "root"),
        (busbar.pick, "objectiv", "objective"),
        (MeasuredRows().frame, "ovr", "over"),
        (MeasuredRows().save, "pat", "path"),
    ],
)
def test_a_wrong_keyword_names_the_right_one(
    function: Callable[..., object], wrong: str, right: str
) -> None:
    """Rule: every function for users names the keyword that is meant, as `run` does."""
    with pytest.raises(Unsupported, match=f"no option '{wrong}'; did you mean {right}?"):
        function(**{wrong: 2})
    assert str(inspect.signature(function))[1:-1].count(f"{right}:") == 1


def _narrow(n: int) -> Schedule:
    """A function of a user that calls Busbar wrongly."""
    return _refuse(n)


def _refuse(n: int) -> Schedule:
    raise Unsupported("only even counts")


def test_an_error_is_raised_at_the_call() -> None:
    """Rule: the traceback of an error has the caller's line and not the way through our modules.

    Lines of a function of the caller stay.
    """
    for wrong, functions in (
        ({"algorithms": "rign"}, []),
        ({"sizes": "1Q"}, []),
        ({"begin": 8}, []),
        ({"algorithms": _narrow}, ["_narrow", "_refuse"]),
    ):
        with pytest.raises(Unsupported) as refused:
            busbar.run(ranks=2, **wrong)  # type: ignore[arg-type]
        frames = [one.name for one in refused.traceback]
        assert frames[1:] == ["called", *functions], frames
        assert refused.value.__suppress_context__
    with pytest.raises(ScheduleError) as failed:
        busbar.verify(_odd, ranks=2)
    assert isinstance(failed.value.__cause__, ValueError)


def test_help_and_types_have_every_option() -> None:
    """Rule: ``help(busbar.run)`` and editors get each keyword, its type, and what it is for.

    `busbar.Keywords` has all keywords with the same types, for a function that passes them on.
    """
    hints = get_type_hints(busbar.run)
    assert hints["collective"] is Collective and hints["return"] is MeasuredRows
    for function, every, options in (
        (busbar.run, busbar.Keywords, OptionKeywords),
        (busbar.step, busbar.StepKeywords, StepOptionKeywords),
    ):
        names = get_type_hints(options)
        first, *others = inspect.signature(function).parameters
        assert get_type_hints(every).keys() == set(others) and first not in names
        hints = get_type_hints(function)
        assert all(hints.get(name, kind) == kind for name, kind in get_type_hints(every).items())
        assert all(f"- ``{name}``: " in (function.__doc__ or "") for name in names)
    assert busbar.MeasuredRows is MeasuredRows and busbar.BusbarError is BusbarError
    for function in map(busbar.__getattr__, busbar.__all__):
        if inspect.isfunction(function):
            made = getattr(get_type_hints(function)["return"], "__name__", "NoneType")
            assert made == "NoneType" or made in busbar.__all__


def test_names_of_options_of_other_programs_stay() -> None:
    """Rule: only our options become keywords: ``pip install -e`` is no ``maxbytes``."""
    text = "-e 4: python -m pip install -e 'x[mpi]' -b; then -b 8, or mpirun -n 2 busbar; -n 5"
    shown = calls.in_python(text, make_parser("allreduce"))
    assert shown == (
        "maxbytes 4: python -m pip install -e 'x[mpi]' -b; then minbytes 8, or mpirun -n 2 busbar;"
        " iters 5"
    )


def test_an_algorithm_is_proven_without_a_run() -> None:
    """Rule: `busbar.verify` proves a function for each count of ranks, and names what is wrong."""
    busbar.verify(_walk, ranks=[1, 2, 5])
    busbar.verify(lambda n: _walk(n), ranks=2)
    with pytest.raises(ScheduleError, match=r"^busbar.verify: _half\(3\) is wrong"):
        busbar.verify(_half, ranks=3)
    with pytest.raises(Unsupported, match="a function of a rank count is proven, not 'ring'"):
        busbar.verify("ring", ranks=2)  # type: ignore[arg-type]
    busbar.verify(_walk, ranks=np.arange(1, 3))  # type: ignore[arg-type]
    for ranks in (0, [], "x", 2.5, None):
        with pytest.raises(Unsupported, match="a number of ranks from 1, or several"):
            busbar.verify(_walk, ranks=ranks)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="did you mean allreduce"):
        busbar.verify(_walk, "allredoce", ranks=2)  # type: ignore[arg-type]
    assert repr(_walk(3)) == "<Schedule: 4 steps, 3 ranks, 1 chunk>"
    assert repr(_walk(3).steps[0]) == "<Step: 1 move>"


def test_a_folder_of_data_hides_no_package(run: Run, tmp_path: Path) -> None:
    """Rule: a folder without ``__init__.py`` may have the name of one of our packages."""
    for name in ("bench", "reports", "topology"):
        (tmp_path / name).mkdir()
    (tmp_path / "reports" / "run.jsonl").write_bytes(to_jsonl(records(["ring"], [2], [1024])))
    code = "import busbar; print(len(busbar.load('reports')))"
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout == "2\n", done


def test_an_algorithm_may_be_a_function(tmp_path: Path) -> None:
    """Rule: a function's schedule is proven, then run as it is, under the function's name.

    So every step reaches the ranks, which a format of messages would lose. A wrong schedule is
    refused before anything starts.
    """
    longer = partial(_chain, k=4)
    longer.__name__ = "longer"  # type: ignore[attr-defined]
    out = tmp_path / "kept.jsonl"
    rows = busbar.run(
        algorithms=["ring", _walk, longer], ranks=[2, 3], sizes=["4K"], iters=1, placement="in",
        transport="inproc", out=out,
    )  # fmt: skip
    assert [(r.algorithm, r.ranks) for r in rows] == [
        (name, ranks) for ranks in (2, 3) for name in ("ring", "_walk", "longer")
    ]
    assert rows.wrong == 0
    wanted = [digest(calls.build(f, "allreduce", n, 0)) for n in (2, 3) for f in (_walk, longer)]
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    digests = [one["schedule"] for one in kept if one.get("algorithm") in ("_walk", "longer")]
    assert digests == wanted and str(tmp_path) not in out.read_text().replace(str(out), "")
    with pytest.raises(ScheduleError, match=r"^algorithms: _half\(2\) is wrong: allreduce: rank 0"):
        busbar.run(algorithms=_half, ranks=[2, 4], sizes=[8])
    with pytest.raises(
        ScheduleError, match=r"^algorithms: _odd\(2\) raised ValueError: odd"
    ) as met:
        busbar.run(algorithms=_odd, ranks=2, sizes=[8])
    assert isinstance(met.value.__cause__, ValueError)
    with pytest.raises(ScheduleError, match="chunks do not fall on"):
        busbar.run("allgather", algorithms=_walk, ranks=2, sizes=[1024])


def test_what_is_named_twice_is_measured_once(tmp_path: Path) -> None:
    """Rule: of a call as of the command, a repeated algorithm, type or rank count counts once."""
    rows = busbar.run(
        algorithms=["ring", _walk, "ring", _walk], ranks=[2, "2"], sizes=["4K"], iters=1,
        dtype=["float", "float"], op=["sum", "sum"], placement="in", transport="inproc",
    )  # fmt: skip
    assert [r.algorithm for r in rows] == ["ring", "_walk"]
    twice = parse(
        ["-A", "ring,tree:segments=4,ring", "-d", "float,fp32", "-o", "sum,sum"], "allreduce"
    )
    assert [one.label for one in twice.algorithms] == ["ring", "tree:segments=4"]
    assert (twice.dtypes, twice.ops) == (("float",), ("sum",))


def test_an_index_beyond_the_rows_says_how_many_there_are(tmp_path: Path) -> None:
    """Rule: the IndexError of rows and of lines names the index and their number.

    What is no number says how rows are chosen, and what rows lack names the field that they have.
    """
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl(records(["ring", "tree"], [2], [1024])))
    rows = busbar.load(path)
    with pytest.raises(IndexError, match=r"^no row 99: there are 4 rows$"):
        _ = rows[99]
    with pytest.raises(IndexError, match=r"^no line -3: there are 2 lines$"):
        _ = rows.best()[-3]
    with pytest.raises(TypeError, match=r"not 'ring'; rows\.filter\(algorithms=\"ring\"\) c"):
        _ = rows["ring"]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"not 'size'; frame\(\) has a column"):
        _ = rows.best()["size"]  # type: ignore[call-overload]
    for name, meant in (
        ("busbw", "busbw_bytes_per_s"), ("algbw", "algbw_bytes_per_s"),
        ("time", "time_s or time_of"), ("median", "time_s"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=rf"a row has no {name}; did you mean {meant}\?$"):
            getattr(rows[0], name)
    with pytest.raises(AttributeError, match=r"^a row has no foo$"):
        _ = rows[0].foo  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(rows[0])) == rows[0]


def test_a_training_step_is_a_call(tmp_path: Path) -> None:
    """Rule: `step` returns the rows of the updates; what the command alone can do is named."""
    pytest.importorskip("pandas")
    rows = busbar.step(
        "toy", ranks=2, update=["ring", "ps"], compute="fixed:1", iters=2, transport="inproc",
        straggler=["0:2", "1:3"],
    )  # fmt: skip
    assert [row.algorithm.partition("/")[0] for row in rows] == ["ring", "ps"]
    assert all(row.step and row.step.stragglers == {"0": 2.0, "1": 3.0} for row in rows)
    assert (rows.frame()["step_compute_s"] > 0).all() and "ring" in str(rows)
    both = busbar.step("toy", ranks=2, update="ring", overlap=["on", "off"], iters=6)
    assert both.frame()["step_overlap"].tolist() == [True, False]
    assert both.frame()["step_update"].tolist() == ["ring", "ring"]
    assert {"step_fusion", "step_hidden", "step_efficiency"} <= set(both.frame().columns)
    assert [row.algorithm for row in both] == ["ring/ddp", "ring/ddp/after"]
    assert "overlap makes a step of ring/ddp" in " ".join(str(both).split())
    best = busbar.step("toy", ranks=2, update=["ring", "async"], compute="fixed:1", iters=2).best()
    why, which = str(best).split("\n", 1)
    assert len(best) == 0 and why.startswith("no answer at each size: training steps")
    assert "async" in which and "ring" in which
    with pytest.raises(Unsupported, match="no algorithm 'ring'; there are: ring/ddp"):
        rows.filter(algorithms="ring")
    for options, said in (
        ({"model": "toyy"}, "toy"),
        ({"update": "rign"}, "did you mean ring?"),
        ({"compute": "fixd:1"}, "compute 'fixd:1': write none"),
        ({"sweep": "ranks"}, "busbar.step has no sweep"),
        ({"learner": 2}, "no option 'learner'"),
        ({"model": "list"}, "busbar step --model list"),
    ):
        with pytest.raises(Unsupported) as refused:
            busbar.step(**options)  # type: ignore[arg-type]
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"launcher": ["mpirun", "-n", "2"]}, "not ['mpirun', '-n', '2']"),
        ({"out": "/nowhere -n/x.jsonl"}, "there is no folder /nowhere -n"),
        ({"out": "-e.txt"}, "-e.txt: no format for '.txt'"),
        ({"host": "-n"}, "host: '-n' is no host name"),
    ],
)
def test_what_the_caller_wrote_stays_as_it_is(options: dict[str, Any], said: str) -> None:
    """Rule: only Busbar's own words become keywords, not the values that a message quotes."""
    with pytest.raises(BusbarError, match=re.escape(said)):
        busbar.run(ranks=2, sizes=[8], **options)


def test_what_a_launcher_says_stays_as_it_is(tmp_path: Path) -> None:
    """Rule: the launcher's own lines are in the exception, word for word."""
    said = "srun: error: unrecognized option '-n' or --overwrite, try -w, -e; --ntasks"
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\necho "{said}" >&2; exit 2\n')
    launcher.chmod(0o755)
    with pytest.raises(RankFailure, match=re.escape(f"with status 2\n    {said}")):
        busbar.run(ranks=2, sizes=[8], launcher=f"{launcher} -n {{ranks}}")


def test_what_a_run_ends_with_is_an_exception(mpich: Mpi) -> None:
    """Rule: a run's own last words and status become the error of that status."""
    with pytest.raises(Unavailable, match="driver"):
        busbar.run(ranks=2, transport="nccl", sizes=[8], iters=1)


def test_what_starts_no_ranks_is_an_error_that_says_so(tmp_path: Path) -> None:
    """Rule: a file that cannot be written is refused before ranks start; so is a missing launcher.

    A launcher that starts nothing is named, and not the file that is missing because of it.
    """
    options: dict[str, Any] = {"ranks": 2, "sizes": [8], "iters": 1}
    written = tmp_path / "kept.jsonl"
    written.write_text("{}\n")
    for out, said in (
        (tmp_path / "none" / "x.jsonl", "there is no folder"),
        (tmp_path / "x.foo", r"no format for '\.foo'"),
        (written, "has results already"),
    ):
        with pytest.raises(StoreError, match=said):
            busbar.run(out=out, **options)
    for status, words in ((0, "no rank wrote results"), (2, "ended with status 2")):
        lost = f"bash -c 'echo lost node7 >&2; exit {status}'"
        with pytest.raises(RankFailure, match=f"(?s){words}.*lost node7"):
            busbar.run(ranks=2, launcher=lost)
    with pytest.raises(Unavailable, match=r"^nosuch: cannot be started: No such file"):
        busbar.run(launcher="nosuch -n {ranks}", **options)
    with pytest.raises(RankFailure, match=r"^the launcher ended with status 0 and no rank wrote"):
        busbar.run(launcher="true", **options)


def test_a_launcher_of_this_python_needs_no_path(
    mpich: Mpi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rule: a launcher that PATH lacks is the one beside this Python, as in a notebook's kernel."""
    beside = tmp_path / "bin" / "mpirun-of-mine"
    beside.parent.mkdir()
    beside.write_text(f'#!/bin/sh\nexec {mpich.mpirun} "$@"\n')
    beside.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    options: dict[str, Any] = {"sizes": [8], "iters": 1, "algorithms": "ring", "placement": "out"}
    (row,) = busbar.run(ranks=2, launcher="mpirun-of-mine -n {ranks}", **options)
    assert row.ranks == 2


def test_a_working_directory_that_was_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: where the working directory is gone, the error says so, for files and for launchers."""
    gone = tmp_path / "gone"
    gone.mkdir()
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl(records(["ring", "tree"], [2], [1024])))
    rows = busbar.load(path)
    monkeypatch.chdir(gone)
    gone.rmdir()
    calls: list[Callable[[], object]] = [
        lambda: busbar.load("run.jsonl"),
        lambda: rows.save("run.jsonl"),
        lambda: busbar.run(ranks=2, out="run.jsonl"),
        lambda: busbar.run(ranks=2, launcher="true {ranks}"),
    ]
    for call in calls:
        with pytest.raises(ReportError, match="the working directory was removed; change to"):
            call()


def test_a_launcher_starts_the_ranks_that_are_given(mpich: Mpi) -> None:
    """Rule: another number of ranks than given is an error of one line; without a number all count.

    A launcher that starts the same number for every count is refused before anything is started.
    """
    options: dict[str, Any] = {"sizes": [8], "iters": 1, "algorithms": "ring", "placement": "out"}
    two = f"{mpich.mpirun} -n 2"
    with pytest.raises(Unsupported, match=r"^ranks 3, but the launcher started 2$"):
        busbar.run(ranks=3, launcher=two, **options)
    with pytest.raises(Unsupported, match=r"write {ranks} in it"):
        busbar.run(ranks=[2, 3], launcher=two, **options)
    (row,) = busbar.run(launcher=two, **options)
    assert row.ranks == 2


def test_what_was_not_checked_is_not_right() -> None:
    """Rule: `wrong` is None where no row was checked, and else counts those that were."""
    rows = MeasuredRows(flat([allreduce("ring", 2, 1 << 20, [1e-3] * 6)]))
    right, wrong, unknown = (structs.replace(rows[0], wrong=count) for count in (0, 3, None))
    assert MeasuredRows([unknown, unknown]).wrong is None is MeasuredRows().wrong
    assert MeasuredRows([unknown, right]).wrong == 0
    assert MeasuredRows([unknown, right, wrong]).wrong == 3


def test_rates_of_what_moves_no_data_are_unknown() -> None:
    """Rule: a barrier has no bandwidth in `frame`, as in lines of `best`: NaN, and not 0."""
    pytest.importorskip("pandas")
    rows = busbar.run("barrier", algorithms="all", ranks=2, transport="inproc", iters=2)
    frame, lines = rows.frame(), rows.best().frame()
    names = ["busbw", "busbw_bytes_per_s"]
    assert frame[[*names, "algbw", "algbw_bytes_per_s"]].isna().all(axis=None)
    assert len(lines) and lines[names].isna().all(axis=None) and frame["time_s"].notna().any()


def test_why_a_run_ended_early_is_said_once() -> None:
    """Rule: the reason stands in the note of the records, and not again as a message of the run."""
    rows = busbar.run(ranks=2, transport="inproc", sizes=["64K", "1M"], total=0.01, launches=2)
    said = [note for note in rows.notes if "the time of total is over" in note]
    assert said == ["busbar.run: the run ended early: the time of total is over"]


def test_a_run_writes_several_files_and_says_what_to_doubt(tmp_path: Path) -> None:
    """Rule: `out` and `load` accept several paths; what a run doubts of its rows is a warning."""
    outs = [tmp_path / "a.jsonl", tmp_path / "b.csv"]
    rows = busbar.run(
        ranks=1, transport="inproc", iters=2, sizes=[8], algorithms="ring", placement="out",
        dtype="float32", out=outs,
    )  # fmt: skip
    assert {one.dtype for one in rows} == {"float"} and rows[0].run.source == str(outs[0])
    assert len(busbar.load(outs)) == len(busbar.load(*outs)) == len(rows)
    doubts = "1 of 1 row has fewer than 6 iterations: no interval is known"
    assert sum(text.startswith(doubts) for text in rows.warnings) == 1
    assert not any("of 1 row " in note for note in rows.notes)
    with pytest.raises(ReportError, match="no file to read"):
        busbar.load([])


def test_an_algorithm_that_a_run_leaves_out_is_noted() -> None:
    """Rule: the rows name what was asked for and not measured, once; without any it is an error."""
    options: dict[str, Any] = {"threads": 2, "sizes": [8], "iters": 1, "placement": "out"}
    rows = busbar.run(algorithms=["ring", "library"], launches=2, **options)
    (launches,) = [note for note in rows.notes if "launch" in note]
    assert re.fullmatch("2 ranks, 2 launches, rows in the order of seed [0-9]+", launches)
    left_out = "left out: library, since threads of one process have none"
    assert sum(note.startswith(left_out) for note in rows.notes) == 1 and left_out in str(rows)
    with pytest.raises(Unsupported, match="nothing is left to run: library, since threads"):
        busbar.run(algorithms="library", **options)


def test_launches_of_several_counts_are_all_kept(tmp_path: Path) -> None:
    """Rule: rows of all counts and launches come back, and into the caller's file, replaced too."""
    out = tmp_path / "run.csv"
    options: dict[str, Any] = {"transport": "inproc", "iters": 1, "algorithms": "dissemination"}
    for more in (dict[str, Any](), {"overwrite": True}):
        rows = busbar.run(
            "barrier", ranks=[1, 2], launches=2, placement="out", out=out, **options, **more
        )
        assert [row.ranks for row in rows] == [1, 1, 2, 2]
        assert [row.ranks for row in busbar.load(out)] == [1, 1, 2, 2]


def test_a_signal_that_ends_the_ranks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: Ctrl-C is a KeyboardInterrupt; SIGTERM does what it does to this program otherwise."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, RankFailure)):
            ended = Ended(128 + number, "", number)
            monkeypatch.setattr(running, "run_of_its_own", lambda *_, ended=ended, **__: ended)
            with pytest.raises(error):
                busbar.run(ranks=2, sizes=[8])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


@pytest.mark.parametrize("out", [None, "kept.jsonl"])
def test_an_interrupt_has_the_finished_rows(
    out: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the interrupt of a run has the finished rows, says how to keep them, and is Python's.

    No note or source names the folder of the ranks' records, which is gone.
    """
    monkeypatch.chdir(tmp_path)
    early = b'{"format":4,"run":"r","end":"early","reason":"interrupted by SIGINT"}\n'
    written = [to_jsonl(records(["ring"], [2], [1024])) + early, b""]

    def interrupted(_: object, __: object, argv: list[str], **more: object) -> Ended:
        file = next(word for word in argv if word.startswith("--after=")).partition("=")[2]
        Path(file).write_bytes(written.pop(0))
        return Ended(130, "", signal.SIGINT)

    monkeypatch.setattr(running, "run_of_its_own", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        busbar.run(ranks=2, sizes=[8], out=out)
    rows = vars(caught.value)["rows"]
    assert type(caught.value) is KeyboardInterrupt
    assert isinstance(rows, MeasuredRows) and len(rows) == 2 and rows[0].algorithm == "ring"
    kept = "in kept.jsonl" if out else 'in this error\'s rows; out="run.jsonl" keeps them'
    assert str(caught.value) == f"2 finished rows {kept}"
    assert {row.run.source for row in rows} == {out or "busbar.run"}
    assert rows.notes == (f"{out or 'busbar.run'}: the run ended early: interrupted by SIGINT",)
    with pytest.raises(KeyboardInterrupt) as bare:
        busbar.run(ranks=2, sizes=[8], out=out)
    assert str(bare.value) == "interrupted before a row was finished"
    assert len(vars(bare.value)["rows"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_ends_by_the_signal_that_came(number: signal.Signals, tmp_path: Path) -> None:
    """Rule: a script whose run is interrupted ends by that signal, so that a shell's loop ends."""
    out = tmp_path / "run.jsonl"
    options = f'ranks=2, algorithms="ring", sizes="8", budget=0.2, run_cycles=99, out={str(out)!r}'
    script = f"import busbar\nbusbar.run({options})"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (out.exists() and "times_s" in out.read_text()):
            sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -number, err
    assert (b"finished row" in err) == (number == signal.SIGINT)


def test_a_result_shows_itself_and_carries_nothing_out(tmp_path: Path) -> None:
    """Rule: tables and the plot are HTML in which names from a file are text."""
    pytest.importorskip("matplotlib")
    made = records(["ring", "tree"], [2, 4], [1024, 1 << 20])
    made += [changed(made[0], algorithm="<script>alert(1)</script>")]
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl(made))
    rows = busbar.load(path)
    page = rows._repr_html_()
    assert page.count("<table>") == len({(r.ranks, r.placement) for r in rows})
    assert "<script" not in page and "&lt;script&gt;" in page and "data:image/svg+xml" in page
    assert (
        "next takes" in page
        and "{" not in page
        and all(text in page for text in ("<th>tree</th>", "1M", "<b>"))
    )
    assert "ring" in str(rows) and "next takes" in rows.answer
    assert "ring" in repr(rows) and len(rows[:2]) == 2 and isinstance(rows[:2], MeasuredRows)
    assert "allreduce ring, 2 ranks, 1024 bytes" in repr(rows[0]) and len(repr(rows[0])) < 100
    assert set(dir(busbar)) >= set(busbar.__all__) and "install" not in dir(busbar)
    for missing in ("no such", "*.none"):
        with pytest.raises(MissingFile, match=r"no such|no file") as caught:
            busbar.load(tmp_path / missing)
        assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, ReportError)
        assert caught.value.filename == str(tmp_path / missing)
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value) and type(again) is MissingFile
        assert (again.filename, again.errno) == (caught.value.filename, errno.ENOENT)
    with pytest.raises(ReportError, match="no file to read"):
        busbar.load()
    with pytest.raises(Unsupported, match="from 1, not 0"):
        busbar.load(path, ranks=0)
    with pytest.raises(ReportError, match=r"no file matches .*\*.log"):
        busbar.load(tmp_path / "*.log")
    with pytest.raises(Unsupported, match="reads files, not 5"):
        busbar.load(5)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="reads files, not a value of type int"):
        busbar.load([5])  # type: ignore[list-item]
    with pytest.raises(ReportError, match=r"\*\*x: "):
        busbar.load(tmp_path / "**x")
    assert len(busbar.load(tmp_path / "*.jsonl")) == len(busbar.load([str(path)])) == len(rows)
    plotted = rows.plot(tmp_path / "drawn", "svg")
    assert plotted and all(one.read_bytes().startswith(b"<?xml") for one in plotted)
    for call, words in (
        (lambda: rows.figures("foo"), "no form 'foo'; there are: svg"),
        (lambda: rows.figures(None), "no form 'None'"),  # type: ignore[arg-type]
        (lambda: rows.plot(5), "folder is a path, not 5"),  # type: ignore[arg-type]
        (lambda: MeasuredRows("x.jsonl"), "not of a value of type str"),  # type: ignore[arg-type]
        (lambda: busbar.load("x" * 5000), "File name too long"),
    ):
        with pytest.raises(BusbarError, match=words):
            call()
    with path.open() as file, pytest.raises(Unsupported, match="reads files, not <_io"):
        busbar.load(file)


def test_rows_are_saved_as_a_run_writes_them(tmp_path: Path) -> None:
    """Rule: `save` writes records that `load` reads as equal rows, with all that `out` has of them.

    A file with content is replaced only with ``overwrite``, and as a whole. Rows whose figures a
    record does not hold are refused.
    """
    kept, path = tmp_path / "kept.jsonl", tmp_path / "saved.jsonl"
    options: dict[str, Any] = {"ranks": 2, "transport": "inproc", "placement": "out", "iters": 6}
    rows = busbar.run(
        algorithms=["ring", "ps"], sizes=["1K", "2K"], sync="window", arrival="ramp:9", out=kept,
        **options,
    )  # fmt: skip
    assert all(row.window and row.window.pattern == "ramp" for row in rows)
    rows += busbar.run("broadcast", algorithms="chain:segments=4", sizes=["1K"], **options)
    rows += busbar.step("toy", ranks=2, update="ring", iters=2, transport="inproc")
    assert rows[4].parameters == {"segments": 4} and rows[5].step and rows[:4] == busbar.load(kept)
    for name in ("saved.jsonl", "packed.jsonl.gz", "list.json"):
        rows.save(tmp_path / name)
        assert busbar.load(tmp_path / name) == rows and not busbar.load(tmp_path / name).notes
    rows[:4].save(path, overwrite=True)
    environment, *_ = kept.read_text().splitlines()
    assert path.read_text().splitlines()[0] == environment.replace(',"ends":true', "")
    for part in (rows.filter(algorithms="ps"), rows[1:4:2], rows[::-1], rows[-1:] + rows[:2]):
        part.save(str(path), overwrite=True)
        assert busbar.load(path) == part
    rows[:2].save(tmp_path / "x.csv")
    assert len(busbar.load(tmp_path / "x.csv")) == 2
    before = path.read_bytes()
    (tmp_path / "x.log").write_text(LOG)
    log = busbar.load(tmp_path / "x.log")
    for wrong, name, said in (
        (rows, "saved.jsonl", "saved.jsonl: has content already; overwrite=True replaces it"),
        (rows, "x.txt", "use one of .jsonl, .jsonl.gz, .csv, .json, .parquet$"),
        (rows, "none/x.jsonl", "there is no folder"),
        (rows, ".", "is a folder"),
        (rows[:0], "y.jsonl", "there are no rows"),
        (log, "y.jsonl", r"x\.log lacks what records hold, such as raw times"),
        (rows + log, "y.csv", r"x\.log lacks"),
        (busbar.load(tmp_path / "x.csv"), "y.jsonl", r"x\.csv lacks"),
    ):
        with pytest.raises(BusbarError, match=said):
            wrong.save(tmp_path / name)
    with pytest.raises(Unsupported, match="path is a file, not 5"):
        rows.save(5)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no regular file"):
        rows.save("/dev/null")
    assert path.read_bytes() == before and not (tmp_path / "y.jsonl").exists()


def test_a_launch_counts_once_however_often_it_is_read(run: Run, tmp_path: Path) -> None:
    """Rule: copies of a file, in Python or for `reports compare`, are no launches of their own."""
    pytest.importorskip("pyarrow")
    sides = []
    for name, factor in (("base", 1.0), ("new", 1.5)):
        made = records(["ring"], [2], [1 << 20], started=f"2026-11-27T10:00:0{factor:.0f}")
        made = [
            changed(one, times_s=tuple(factor * t for t in one.out.times_s))
            for one in made
            if one.out
        ]
        folder = tmp_path / name
        folder.mkdir()
        for copy in ("a.jsonl", "b.jsonl"):
            (folder / copy).write_bytes(to_jsonl(made))
        rows = busbar.load(folder / "a.jsonl")
        (folder / "c.parquet").write_bytes(to_parquet(rows))
        (folder / "d.csv").write_bytes(CsvLines().lines(rows))
        sides.append(folder)
    for copies in (
        [sides[0] / "a.jsonl"] * 3,
        [sides[0]],
        [*sides[0].glob("*")],
        [sides[0] / "a.jsonl", sides[0]],
        [sides[0] / "d.csv", sides[0] / "c.parquet"],
        [sides[0] / "a.jsonl", sides[0] / "d.csv"],
    ):
        rows = busbar.load(copies)
        assert len(rows) == len(busbar.load(sides[0] / "a.jsonl"))
        assert "a launch counts once" in " ".join(rows.notes)
        assert len(set(rows.notes)) == len(rows.notes)
        assert {one.verdict for one in busbar.compare(rows, sides[1])} == {"cannot tell"}
        assert "BASE and NEW have 1 launch in common" in str(busbar.compare(rows, sides[0]))
    once, again = (busbar.load(sides[0] / name) for name in ("a.jsonl", "b.jsonl"))
    assert len(once + again) == len(once + list(again)) == len(sum([once, again])) == len(once)
    assert busbar.compare(list(once) + list(again), sides[1])[0].verdict == "cannot tell"
    csv, other = (busbar.load(side / "d.csv") for side in sides)
    assert len(once + csv) == len(csv + once) == len(once)
    assert len(once + other) == len(busbar.load(sides[0] / "a.jsonl", sides[1] / "d.csv")) == 4
    shown = run(sys.executable, "-m", "reports", "compare", *map(str, sides))
    assert "cannot tell" in shown.stdout.splitlines()[-1] and "counts once" in shown.stderr
    shown = run(sys.executable, "-m", "reports", "show", *map(str, sides[0].glob("*.jsonl")))
    assert shown.returncode == 0 and shown.stdout.count("1M") and "counts once" in shown.stderr


def test_rows_can_be_chosen_and_say_what_was_skipped(tmp_path: Path) -> None:
    """Rule: `filter` takes values of columns, and refuses those that no row has.

    Warnings are of the rows at hand; a skip is one.
    """
    made = [*records(["ring", "tree"], [2, 4], [1024, 1 << 20])]
    crowded = [changed(one, ranks_per_core=2.0) for one in records(["ps"], [4], [1024])]
    lost = [changed(one, skipped="no room", times_s=()) for one in records(["tree"], [2], [4096])]
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl([*made, *crowded, *lost]))
    rows = busbar.load(path)
    chosen = rows.filter(algorithms=["ring", "tree"], sizes="1K", ranks=2, placement="out")
    assert [(r.algorithm, r.size, r.ranks) for r in chosen] == [
        ("ring", 1024, 2),
        ("tree", 1024, 2),
    ]
    assert any("share cores" in one for one in rows.warnings)
    assert not any("share cores" in one for one in chosen.warnings + rows[:1].warnings)
    assert "2 rows skipped: no room" in rows.warnings and "2 skipped" in repr(rows)
    assert "skipped" not in repr(chosen) + "".join(chosen.warnings)
    with pytest.raises(Unsupported, match="'1Q' is no size"):
        rows.filter(sizes="1Q")
    for wrong, said in (
        ({"algorithms": ["tree", "rong"]}, "no algorithm 'rong'; there are: ring, tree, ps$"),
        ({"algorithms": 5}, "no algorithm 5; there are: "),
        ({"algorithms": [["ring"]]}, r"no algorithm \['ring'\]"),
        ({"sizes": ["1K", 3]}, "no size 3; there are: 1K, 4K, 1M$"),
        ({"ranks": "x"}, "no ranks 'x'; there are: 2, 4$"),
        ({"ranks": [2, 0]}, "no ranks 0; there are: 2, 4"),
        ({"collective": "allgather"}, "no collective 'allgather'; there are: allreduce$"),
        ({"dtype": "flaot"}, "no dtype 'flaot'; there are: float$"),
        ({"dtype": np.complex64}, "no dtype 'complex64'; there are: float"),
        ({"op": "max"}, "no op 'max'; there are: sum"),
        ({"transport": "tcp"}, "no transport 'tcp'; there are: "),
        ({"arrival": "ramp"}, "no arrival 'ramp'; these rows have none"),
        ({"placement": "out-of-place"}, "no placement 'out-of-place'; there are: out, in"),
        ({"dtype": float}, "Python's float has no size"),
        ({"algorithm": "ring"}, "filter: no option 'algorithm'; did you mean algorithms?"),
        ({"datatype": "float"}, "filter: no option 'datatype'; did you mean dtype?"),
    ):
        with pytest.raises(Unsupported, match=said):
            rows.filter(**wrong)  # type: ignore[arg-type]
    assert rows.filter(dtype=np.float32) == rows == rows.filter(ranks=[np.int64(2), 4])
    same = rows.filter(dtype="float32", ranks="2")  # type: ignore[arg-type]
    assert same == rows.filter(dtype="float", ranks=2) and len(same)
    nothing = rows.filter(algorithms="ps", sizes="1M")
    assert str(nothing) == "no rows" and "no rows" in nothing._repr_html_() and not nothing.notes
    assert len(nothing.filter(algorithms="ring")) == 0
    assert rows == busbar.load(path) == rows[:] and rows != chosen and rows != list(rows)
    for other in ([1], 5):
        with pytest.raises(Unsupported, match="are made of rows, not of a value of type int"):
            rows + other  # type: ignore[operator]


def test_remedies_are_calls_and_keywords() -> None:
    """Rule: a remedy in Python is a call of ours, with the keywords of the command's options."""
    made = flat(records(["ring", "tree"], [2, 4], [64, 4096]))
    rows = MeasuredRows(structs.replace(one, others_share=0.5) for one in made)
    for shown in (rows.answer, str(rows), str(rows.best())):
        text = " ".join(shown.split())
        assert "busbar allreduce" not in text and "repeat the run: busbar.run(" in text
    (called,) = re.findall(r"busbar\.run\(.*?\)", " ".join(rows.answer.split()))
    call = ast.parse(called, mode="eval").body
    assert isinstance(call, ast.Call) and ast.literal_eval(call.args[0]) == "allreduce"
    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    assert given.pop("ranks") == [2, 4] and given["algorithms"] == ["ring", "tree"]
    commands = {new: old for old, new in calls.RENAMED.items()}
    words = make_parser("allreduce").words(
        {commands.get(str(name), str(name)): value for name, value in given.items()}, "run"
    )
    assert parse([*words, "--ranks", "4"], "allreduce").wait_quiet == 600
    lost = [structs.replace(one, skipped="late: use --sync barrier", time_s=None) for one in made]
    shown = " ".join(str(MeasuredRows(lost)).split())
    assert shown.count('late: use sync="barrier"') > 1 and "--sync" not in shown
    step = "(busbar step --ranks 2 --model toy --compute exp:5,1 --update ring,async)"
    assert in_keywords(step) == (
        '(busbar.step("toy", ranks=2, compute="exp:5,1", update=["ring", "async"]))'
    )
    assert in_keywords("busbar step --ranks 2 --model toy, or x") == (
        'busbar.step("toy", ranks=2), or x'
    )
    for text, said in (
        ("raise -n or --budget; use --sync barrier", 'raise iters or budget; use sync="barrier"'),
        ("(try --wait-quiet 10m)", '(try wait_quiet="10m")'),
        ("use --ranks 2, or --out and --sync of it", "use ranks=2, or out and sync of it"),
        ("python -m topology measure -o FILE", "busbar topology measure -o FILE"),
        ("python -m bench.pt2pt reads", "busbar pt2pt reads"),
        ("--ranks N (or mpirun -n N)", "ranks=N (or mpirun -n N)"),
        ("x; busbar pt2pt --out FILE", "x; busbar pt2pt --out FILE"),
        ("a -- b - 5", "a -- b - 5"),
    ):
        assert in_keywords(text) == said
    few = timed([1e-6] * 3, stopped="iterations")
    (advice,) = MeasuredRows(flat([allreduce("ring", 2, 64, few)])).warnings
    assert advice.endswith("(raise iters)")


def test_a_call_under_a_launcher_names_the_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a script that mpirun started is refused, and told of ``launcher=``."""
    monkeypatch.setattr(running, "launched", lambda: 2)
    for call in (busbar.run, busbar.step):
        with pytest.raises(Unsupported, match=r"launcher= .* as launcher='mpirun -n \{ranks\}'$"):
            call(ranks=2)


def test_sizes_that_are_too_small_have_the_keywords_that_set_them() -> None:
    """Rule: a size below one element names ``sizes``, whichever keyword gave it."""
    for sizes in ({"sizes": [3]}, {"minbytes": 3, "maxbytes": 3}):
        with pytest.raises(Unsupported, match=r"give larger sizes \(sizes, or minbytes and maxb"):
            busbar.run(ranks=2, **sizes)  # type: ignore[arg-type]


def test_a_map_that_is_loaded_names_the_installed_command(tmp_path: Path) -> None:
    """Rule: errors in Python name ``busbar topology``, not a module for ``python -m``."""
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "x.log").write_text(LOG)
    for call in (
        lambda: busbar.load(tmp_path / "topo.txt"),
        lambda: busbar.topology(tmp_path / "x.log"),
    ):
        with pytest.raises(BusbarError) as caught:
            call()
        assert "busbar topology" in str(caught.value) and "python -m" not in str(caught.value)


def test_a_bad_file_does_not_cost_the_others(tmp_path: Path) -> None:
    """Rule: `load` of several files keeps those that it can read, and notes the others."""
    (tmp_path / "a.jsonl").write_bytes(to_jsonl(records(["ring"], [2], [1024])))
    (tmp_path / "b.jsonl").write_text("no rows here\n")
    rows = busbar.load(tmp_path / "*.jsonl")
    assert len(rows) == 2 and any("b.jsonl: no row" in note for note in rows.notes)
    with pytest.raises(ReportError, match=r"b\.jsonl"):
        busbar.load(tmp_path / "b.jsonl")


def test_rows_print_what_the_command_shows(run: Run, tmp_path: Path) -> None:
    """Rule: ``str()`` of rows has the answer and the warnings of ``reports show``.

    What a run measured several times (``-N``) is one row of both; the rows themselves stay apart.
    """
    path = tmp_path / "run.jsonl"
    turns = [allreduce("ring", 2, 1024, [n * 1e-6] * 10) for n in (1, 2, 3)]
    path.write_bytes(to_jsonl(turns))
    shown = run(sys.executable, "-m", "reports", "show", str(path)).stdout
    again = busbar.load(path)
    lines = [re.findall("(?m)^ *1K .*", text) for text in (str(again), shown)]
    assert [len(one) for one in lines] == [1, 1] and len(again) == 3
    assert all("2.00 us" in one and " 30 " in one for (one,) in lines)
    (tmp_path / "run.csv").write_bytes(CsvLines().lines(flat(turns)))
    assert len(re.findall("(?m)^ *1K ", str(busbar.load(tmp_path / "run.csv")))) == 3
    crowded = [changed(one, ranks_per_core=2.0) for one in records(["ring", "tree"], [4], [1024])]
    path.write_bytes(to_jsonl(crowded))
    rows = busbar.load(path)
    shown = run(sys.executable, "-m", "reports", "show", str(path))
    assert any("share cores" in one for one in rows.warnings)
    for line in (*rows.answer.splitlines(), *rows.warnings):
        of_command = line.replace("launches=7", "--launches 7")
        assert line in str(rows) and of_command in shown.stdout + shown.stderr


def test_the_best_at_each_size_is_that_of_the_answer(tmp_path: Path) -> None:
    """Rule: `best` decides as the answer does, a line per size, and says where it cannot tell."""
    pd = pytest.importorskip("pandas")
    near = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.2]
    made = []
    for size, ring, tree in ((1024, 1e-6, 2e-6), (4096, 1.01e-6, 1e-6), (1 << 20, 3e-3, 1e-3)):
        for name, base in (("ring", ring), ("tree", tree)):
            made.append(allreduce(name, 2, size, [base * one for one in near]))
    wide = [1e-6, 1e-3] * 4
    made += [allreduce(name, 4, 1024, wide) for name in ("ring", "tree")]
    made.append(allreduce("ring", 8, 1024, near))
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_jsonl(made))
    rows = busbar.load(path)
    best = rows.best()
    assert [(one.ranks, one.size, one.algorithm, one.verdict, one.answer) for one in best] == [
        (2, 1024, "ring", "fastest", "ring"),
        (2, 4096, "tree", "may be no faster", "ring"),
        (2, 1 << 20, "tree", "fastest", "tree"),
        (4, 1024, "ring", "cannot tell", "ring"),
    ]
    assert "crossovers: ~ring to tree between 4K and 1M" in rows.answer
    assert all(one.library_ratio is one.library_ratio_low is None for one in best)
    first = best[0]
    assert first.next == "tree" and first.ratio == pytest.approx(2.0)
    assert first.ratio_low and first.ratio_high and first.ratio_low < 2 < first.ratio_high
    shown = str(best)
    assert "~tree" in shown and "cannot tell" in shown and "~: another may be as fast" in shown
    crowded = MeasuredRows(structs.replace(one, others_share=0.5) for one in rows).best()
    assert "other programs took up to 50 %" in str(crowded)
    assert best == rows.best() != rows[:2].best() and best != list(best)
    assert repr(best) == shown and "~tree" in best._repr_html_()
    frame = best.frame()
    assert list(frame["algorithm"]) == [one.algorithm for one in best]
    assert isinstance(frame, pd.DataFrame) and frame["ratio"].dtype == "float64"
    assert frame.attrs["units"]["busbw"] == "GB/s"
    none = rows[-1:].best()
    assert len(none) == 0 == len(none.frame()) and "no answer" in str(none)


def test_the_library_has_the_interval_that_the_answer_prints() -> None:
    """Rule: the library's ratio has an interval, the one that the answer prints."""
    spread = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.2]
    times = {"ring": 1e-3, "tree": 2e-3, "library": 4e-3}
    made = [allreduce(name, 2, 1 << 20, [t * s for s in spread]) for name, t in times.items()]
    rows = MeasuredRows(flat(made))
    (line,) = rows.best()
    assert line.next == "tree" and line.library_ratio == pytest.approx(4)
    low, high = line.library_ratio_low, line.library_ratio_high
    assert low is not None and high is not None and 1 < low < 4 < high
    assert f"4.00 times as fast as library at 1M ({low:.2f} to {high:.2f})" in rows.answer
    (first,) = rows.filter(algorithms=["tree", "library"]).best()
    assert first.library_ratio_low == first.ratio_low and first.next == "library"


def test_a_transport_is_no_part_of_an_algorithms_name() -> None:
    """Rule: `best` has plain names, which `frame` and `filter` have too; transports are columns.

    One rank, which sends nothing, has a transport of its own and makes no name longer.
    """
    pytest.importorskip("pandas")
    over = {
        "shm": {"ring": 1e-3, "tree": 4e-3, "library": 9e-3},
        "mpi": {"ring": 2e-3, "tree": 5e-3},
    }
    made = [
        allreduce(name, 2, 1 << 20, [time] * 9, transport=transport)
        for transport, times in over.items()
        for name, time in times.items()
    ]
    one_rank = [allreduce(name, 1, 1 << 20, [1e-6] * 9) for name in ("ring", "tree")]
    rows = MeasuredRows(flat([*made, *one_rank]))
    (best,) = rows.best()
    assert (best.algorithm, best.transport) == ("ring", "shm") == (best.answer, "shm")
    assert (best.next, best.next_transport, best.answer_transport) == ("ring", "mpi", "shm")
    assert best.ratio == pytest.approx(2) and best.library_ratio == pytest.approx(9)
    assert "ring shm" in str(rows.best()) and "ring shm" in rows.answer
    with pytest.raises(Unsupported, match="no algorithm 'ring shm'; there are: ring, tree, libr"):
        rows.filter(algorithms="ring shm")
    same = ["algorithm", "transport", "size", "ranks"]
    joined = rows.best().frame().merge(rows.frame(), on=same)
    assert list(joined["time_s_x"]) == list(joined["time_s_y"]) == [1e-3]
    near = MeasuredRows(flat([*made[:3], *one_rank]))
    (best,) = near.best()
    assert (best.next, best.next_transport) == ("tree", "shm")
    assert len(near.filter(algorithms=best.next, transport=best.next_transport)) == 1
    assert "ring shm" not in near.answer + str(near.best())


def test_arrival_patterns_stay_apart() -> None:
    """Rule: rows under several arrival patterns, and of several roots, are never one line or cell.

    `best` and `compare` name what the times are in ``across``; so does each table of a notebook.
    ``arrival`` is the pattern, which is the same at all sizes.
    """
    made = []
    for across, pattern, ring, tree in (
        ("operation", "zero", 1e-3, 2e-3),
        ("last arrival of ramp:9", "ramp", 4e-3, 3e-3),
    ):
        for name, time in (("ring", ring), ("tree", tree)):
            times = timed([time] * 9, across=across, window=Window(pattern=pattern))
            made += [allreduce(name, 2, 1 << 20, times, root=root) for root in (0, 1)]
    rows = MeasuredRows(flat(made))
    late = "last arrival of ramp:9"
    wanted = {("operation", "zero", "ring"), (late, "ramp", "tree")}
    best = rows.best()
    assert len(best) == 4 and {(one.across, one.arrival, one.algorithm) for one in best} == wanted
    page = rows._repr_html_()
    assert page.count("<table>") == 4 and page.count(f"root 1, 2 ranks, {late}:") == 1
    assert {one.across for one in rows.filter(arrival="ramp")} == {late}
    with pytest.raises(Unsupported, match="no arrival 'ramp:9'; there are: zero, ramp"):
        rows.filter(arrival="ramp:9")
    compared = busbar.compare(rows, rows[::-1])
    assert len({(one.across, one.root, one.algorithm) for one in compared}) == len(compared) == 8
    over = [allreduce("ring", 2, 1 << 20, [1e-3] * 9, transport=name) for name in ("shm", "mpi")]
    assert "<th>ring shm</th><th>ring mpi</th>" in MeasuredRows(flat(over))._repr_html_()


@pytest.mark.parametrize("name", ["ps", "recursive_doubling"])
def test_a_printed_frame_has_what_is_read_first(name: str) -> None:
    """Rule: in 80 characters pandas prints the figures of rows, beside long names too."""
    pd = pytest.importorskip("pandas")
    facts = ({"launch": {"number": n, "of": 3, "seed": 1}} for n in (1, 2, 3))
    rows = MeasuredRows(r for n, one in enumerate(facts) for r in parsed(noisy(n, **one)))
    longer = {"ring": name}
    rows = MeasuredRows(
        structs.replace(r, algorithm=longer.get(r.algorithm, r.algorithm)) for r in rows
    )
    for table, columns in (
        (rows, {"algorithm", "size", "busbw", "wrong", "time_s"}),
        (rows.best(), {"algorithm", "size", "ratio", "verdict"}),
        (busbar.compare(rows, rows), {"algorithm", "size", "change", "verdict"}),
        (busbar.predict(ranks=2, algorithms=name), {"size", "busbw", "time_s", "best"}),
    ):
        with pd.option_context("display.width", 80, "display.max_columns", 0):
            heads = str(table.frame()).splitlines()[0]
        assert len(heads) <= 80 and columns <= set(heads.split()), heads


def test_a_frame_over_launches_has_the_lines_of_the_table() -> None:
    """Rule: frame(over="launches") has a line for each line that print(rows) shows."""
    facts = ({"launch": {"number": n, "of": 3, "seed": 1}} for n in (1, 2, 3))
    rows = MeasuredRows(r for n, one in enumerate(facts) for r in parsed(noisy(n, **one)))
    table = rows.frame(over="launches")
    assert len(rows.frame()) == 3 * len(table) == 18 and list(table["launches"]) == [3] * 6
    for _, line in table.iterrows():
        same = [r for r in rows if (r.algorithm, r.size) == (line["algorithm"], line["size"])]
        assert line["time_s"] == pytest.approx(geometric_mean(r.time_s or 0 for r in same))
        assert line["low_s"] < line["time_s"] < line["high_s"]
    assert "launch" not in table and len(rows[:6].frame(over="launches")) == 6
    with pytest.raises(Unsupported, match="over is rows or launches, not 'all'"):
        rows.frame(over="all")  # type: ignore[arg-type]


def test_a_parquet_file_has_the_answer_of_the_records(tmp_path: Path) -> None:
    """Rule: rows are compared within their launch, whichever form kept them.

    Also if each row came with a copy of what is known of its run, as while a run goes on.
    """
    facts = ({"launch": {"number": n, "of": 4, "seed": 1}} for n in (1, 2, 3, 4))
    rows = MeasuredRows(
        structs.replace(row, run=replace(row.run, number=n))
        for n, one in enumerate(facts)
        for row in parsed(noisy(n, slow=1 + 0.2 * n, **one))
    )
    path = tmp_path / "r.parquet"
    path.write_bytes(to_parquet(rows))
    read = busbar.load(path)
    assert len({id(row.run) for row in read}) == 4
    assert [(b.verdict, b.ratio_low) for b in read.best()] == [
        (b.verdict, pytest.approx(b.ratio_low)) for b in busbar.load(_kept(rows, tmp_path)).best()
    ]


def _kept(rows: MeasuredRows, folder: Path) -> Path:
    (folder / "r.jsonl").write_bytes(to_jsonl(rows))
    return folder / "r.jsonl"


def test_steps_are_launched_several_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: `step` with launches=4 gives the rows of four runs, all in ``out``, as launches.

    Ctrl-C in a later launch keeps the rows of those before.
    """
    pytest.importorskip("pandas")
    file = tmp_path / "steps.jsonl"
    known: dict[str, Any] = {"ranks": 2, "update": "ring", "iters": 6, "transport": "inproc"}
    rows = busbar.step("toy", launches=4, out=file, **known)
    assert rows.frame()["launch"].tolist() == [0, 1, 2, 3] and len(busbar.load(file)) == 4
    text = str(busbar.compare(rows, rows))
    assert "BASE and NEW have 4 launches in common" in text and "1 indistinguishable" in text
    with pytest.raises(Unsupported, match="launches is a number from 1, not 0"):
        busbar.step("toy", launches=0, **known)
    measured = iter([rows[:1], KeyboardInterrupt()])

    def launch(*args: object) -> MeasuredRows:
        one = next(measured)
        if isinstance(one, KeyboardInterrupt):
            raise one
        return one

    monkeypatch.setattr("bench.api.running._steps", launch)
    with pytest.raises(KeyboardInterrupt) as stopped:
        busbar.step("toy", launches=4, **known)
    assert stopped.value.rows == rows[:1]  # type: ignore[attr-defined]


def test_two_sides_are_compared_as_the_command_does(run: Run, tmp_path: Path) -> None:
    """Rule: `compare` gives the verdicts of `reports compare`, a line per row, and its notes."""
    pytest.importorskip("pandas")
    sides = []
    for side, factor in (("base", 1.0), ("new", 1.5)):
        for n in range(5):
            path = tmp_path / f"{side}{n}.jsonl"
            times = [factor * (1e-3 + 1e-6 * ((7 * k + n) % 10)) for k in range(10)]
            path.write_bytes(to_jsonl([allreduce("ring", 2, 1 << 20, times)]))
        sides.append(busbar.load(tmp_path / f"{side}*.jsonl"))
    (row,) = compared = busbar.compare(*sides)
    assert row.verdict == "slower" and row.change == pytest.approx(0.5, rel=0.01)
    assert row.p is not None and row.change_low and 0.4 < row.change_low < row.change
    assert f"{row.change:+.1%}" in str(compared)
    assert compared.frame().attrs["units"]["change"] == "share of base"
    files = [[str(path) for path in sorted(tmp_path.glob(f"{side}*"))] for side in ("base", "new")]
    shown = run(sys.executable, "-m", "reports", "compare", *files[0], "--", *files[1]).stdout
    assert "NEW against BASE: 1 slower" in shown and shown.splitlines()[-1] in str(compared)
    assert list(busbar.compare(*files).frame()["verdict"]) == ["slower"]
    assert busbar.compare(sides[0][:1], sides[1][:1])[0].verdict == "cannot tell"
    for few in (sides[0][:1], sides[0][:1] + sides[1][:1]):
        told = busbar.compare(few, sides[0][1:])
        assert told[0].verdict == "cannot tell" and told[0].unit == "s"
    assert str(busbar.compare(*sides[:1], sides[0][:1])).endswith("one launch on a side")
    library, nameless = (
        MeasuredRows(structs.replace(row, algorithm=name) for row in side)
        for side, name in zip(sides, ("library", ""), strict=True)
    )
    note = "NEW names no algorithm in 1 row: compared as the library's"
    assert note in str(busbar.compare(library, nameless)) and note not in str(compared)
    parts = [sides[0][:2], *sides[0][2:4], str(tmp_path / "base4.jsonl")]
    assert busbar.compare(parts, [sides[1]])[0].verdict == "slower"
    alone = " ".join(str(busbar.compare(sides[0][:1], sides[1][:1])).split())
    assert "--launches" not in alone
    turns = "The command busbar ab has both sides take turns. NEW against BASE"
    assert re.search(rf": busbar\.run\([^()]* launches=7\) {turns}", alone), alone
    for nothing in (sides[1][:0], []):
        with pytest.raises(ReportError, match="NEW has no rows"):
            busbar.compare(sides[0], nothing)
    for wrong, kind in ((sides[0].frame(), "DataFrame"), (5, "int"), ([5], "int")):
        with pytest.raises(Unsupported, match=f"files are compared, not a value of type {kind}"):
            busbar.compare(wrong, sides[1])  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="reads files, not a value of type Measurement"):
        busbar.load(sides[0])
    with pytest.raises(Unsupported, match="noise is a share"):
        busbar.compare(*sides, noise="1%")  # type: ignore[arg-type]


def test_lines_of_a_comparison_are_in_the_order_of_its_text() -> None:
    """Rule: launches in random order change no order of `compare`, of its frame or of its text."""
    pytest.importorskip("pandas")
    rows = MeasuredRows(
        flat([
            allreduce(name, 2, size, [1e-3] * 6)
            for name, size in (("tree", 4096), ("ring", 1024), ("tree", 1024), ("ring", 4096))
        ])
    )  # fmt: skip
    compared = busbar.compare(rows, rows)
    order = [("tree", 1024), ("tree", 4096), ("ring", 1024), ("ring", 4096)]
    assert [(one.algorithm, one.size) for one in compared if one.placement == "out"] == order
    assert list(compared.frame()["size"]) == [one.size for one in compared]
    printed = re.findall(r"^ +([14])K  (\w+)", str(compared), re.MULTILINE)
    assert [(name, int(size) << 10) for size, name in printed] == [
        (one.algorithm, one.size) for one in compared
    ]


def test_a_disturbed_launch_stays_so_in_each_part_of_it(tmp_path: Path) -> None:
    """Rule: rows that do not show other programs themselves have the warning of their launch.

    It stays with every choice of them, in `best`, a DataFrame and the text of `compare`, and no row
    of another launch has it. What is too disturbed to compare is so in each part.
    """
    pytest.importorskip("pandas")
    short = allreduce("ring", 2, 1024, [1e-6, 2e-6] * 5)
    quick = allreduce("ps", 2, 1024, [3e-6, 4e-6] * 5)
    long = changed(allreduce("ps", 2, 1 << 20, [0.1, 0.2] * 5), noise=Noise(others=(0.1,)))
    for name, made in {"busy": [short, quick, long], "quiet": [short, quick]}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(to_jsonl(made))
    busy, quiet = (busbar.load(tmp_path / f"{name}.jsonl") for name in ("busy", "quiet"))
    first = (
        "times may be disturbed: in the same launch other programs took up to 10 % of all cores in"
        ' 1 of 1 row of 0.1 s or longer (try wait_quiet="10m")'
    )
    ring = busy.filter(algorithms="ring")
    both = busbar.load(tmp_path / "busy.jsonl").filter(algorithms="ps", sizes=1024) + ring
    for part in (ring, busy[:1], ring[:1], busy.filter(sizes=1024)[:2], both, both[1:]):
        assert part.warnings[0] == first and part.frame().attrs["disturbance"] == first
        assert first in str(part) and first in " ".join(str(part.best()).split())
    itself = busy.filter(sizes="1M")
    for rows in (itself, busy):
        assert rows.frame().attrs["disturbance"] == rows.warnings[0]
    assert "in the same launch" not in "".join([*busy.warnings, *itself.warnings])
    for part in (quiet, (busy + quiet)[-1:], (quiet + ring)[:1], MeasuredRows()):
        assert not part.frame().attrs["disturbance"] and "disturbed" not in "".join(part.warnings)
    much = changed(allreduce("ps", 2, 1 << 20, [0.1, 0.2] * 5), noise=Noise(others=(0.5,)))
    (tmp_path / "much.jsonl").write_bytes(to_jsonl([short, quick, much]))
    part = busbar.load(tmp_path / "much.jsonl").filter(sizes=1024)
    assert (part.best()[0].verdict, quiet.best()[0].verdict) == ("cannot tell", "fastest")
    for text in (part.answer, str(part.best())):
        assert text.startswith("too disturbed to compare") and "times may be" not in text
    for left, right, side in (
        (ring, quiet, "BASE"), ([quiet], [ring], "NEW"), (busy, busy[:1], "BASE")
    ):  # fmt: skip
        text = " ".join(str(busbar.compare(left, right)).split())
        assert f"{side}: times may be disturbed: " in text and "(try wait_quiet=" in text


def test_two_algorithms_are_set_beside_each_other(tmp_path: Path) -> None:
    """Rule: `compare` of two algorithms or transports names ``ignore``, which compares them.

    It is an error where a side has several, since their launches would count as those of one.
    Of a single launch `best` has a verdict and `compare` has none; the texts of both say why, as do
    the text and the warnings of the rows themselves.
    """
    times = {"ring": 1e-3, "ps": 2e-3, "library": 4e-3}
    for n in range(5):
        noise = [1 + ((7 * k + n) % 10) / 1e3 for k in range(10)]
        made = [
            allreduce(
                name,
                2,
                1 << 20,
                [time * one for one in noise],
                transport="mpi" if name == "library" else "shm",
            )
            for name, time in times.items()
        ]
        (tmp_path / f"{n}.jsonl").write_bytes(to_jsonl(made))
    rows = busbar.load(tmp_path / "*.jsonl")
    ring, ps, library = (rows.filter(algorithms=name) for name in times)
    with pytest.raises(ReportError, match=r'ring against ps\); ignore="algorithm" compares them'):
        busbar.compare(ring, ps)
    (row,) = compared = busbar.compare(ring, ps, ignore="algorithm")
    assert (row.algorithm, row.new_algorithm, row.verdict) == ("ring", "ps", "slower")
    assert row.change == pytest.approx(1)
    within = "one launch: others may lie outside these intervals; launches=7 shows how far"
    asks = "Algorithms of one launch are compared within it by its answer; this comparison asks"
    assert rows.best()[0].verdict == "fastest"
    assert within not in str(rows.best()) and asks not in str(compared)
    single = busbar.load(tmp_path / "0.jsonl")
    sides = [single.filter(algorithms=name) for name in ("ring", "ps")]
    assert single.best()[0].verdict == "fastest" and within in str(single.best())
    # Also the rows' own text and warnings, once; what `filter` chose has no answer to doubt.
    assert single.warnings[-1] == within and str(single).count(within) == 1
    assert within not in str(rows) and within not in sides[0].warnings
    (row,) = of_one = busbar.compare(*sides, ignore="algorithm")
    assert row.verdict == "cannot tell" and asks in " ".join(str(of_one).split())
    itself = str(busbar.compare(single, single))
    assert asks not in itself and within not in itself
    assert "compared: algorithm ring against ps" in str(compared)
    assert "names no algorithm" not in str(compared)
    with pytest.raises(ReportError, match=re.escape('ignore=["algorithm", "transport"] compares')):
        busbar.compare(ring, library)
    (row,) = busbar.compare(ring, library, ignore=["algorithm", "transport"])
    assert (row.transport, row.new_transport, row.verdict) == ("shm", "mpi", "slower")
    (same,) = busbar.compare(ring, ring, ignore="algorithm")
    assert same.algorithm == same.new_algorithm == "ring"
    with pytest.raises(ReportError, match="choose one algorithm a side, then ignore="):
        busbar.compare(ring + ps, library)
    with pytest.raises(ReportError, match='ignore="algorithm": BASE has ring, ps; choose one'):
        busbar.compare(ring + ps, ps, ignore="algorithm")
    with pytest.raises(Unsupported, match="no setting to ignore 'op'; there are: algorithm, "):
        busbar.compare(ring, ps, ignore="op")  # type: ignore[arg-type]


def test_times_are_predicted_and_simulated_as_the_commands_do() -> None:
    """Rule: `predict` and `simulate` give the figures of `collectives cost` and `simulate`."""
    pytest.importorskip("pandas")
    words = "cost ring,ps -c allreduce -n 4 -b 1M -e 1M --format json"
    wanted = json.loads(collectives_cli(words)[1])["rows"]
    times = busbar.predict(ranks=4, algorithms=["ring", "ps", _walk], sizes=["1M"])
    assert [one.time_s for one in times[:2]] == [one["predicted_s"] for one in wanted]
    assert [one.busbw_bytes_per_s for one in times[:2]] == [
        one["busbw_bytes_per_s"] for one in wanted
    ]
    barrier = busbar.predict("barrier", ranks=4)
    assert all(np.isnan(one.busbw_bytes_per_s) for one in barrier) and "  -" in str(barrier)
    assert [one.best for one in times] == [True, False, False] and times[2].algorithm == "_walk"
    assert times[2].steps == 6 and "no machine given (topology, fit)" in str(times)
    assert len(busbar.predict("broadcast", ranks=6, sizes=["1K"]).frame()) == len(
        catalogue.algorithms("broadcast")
    )
    times = busbar.predict(ranks=np.int64(2), sizes="1K,2K", algorithms="ring")
    assert [(one.size, one.ranks) for one in times] == [(1024, 2), (2048, 2)]
    (usual,) = busbar.simulate("broadcast", machine="torus:2x2", ranks=np.int64(4), sizes=["1K"])
    assert usual.algorithm == catalogue.usual("broadcast") and usual.ranks == 4
    simulated = busbar.simulate(machine="torus:2x2", algorithms=["ring", _walk], sizes=["1M"])
    text = collectives_cli("simulate ring -c allreduce --machine torus:2x2 -b 1M")[1]
    assert format_seconds(simulated[0].time_s, SIMULATED) in text and simulated[0].ranks == 4
    one = simulated[1]
    parts = one.posting_s + one.latency_s + one.wire_s + one.sharing_s + one.adding_s
    assert one.algorithm == "_walk" and parts == pytest.approx(one.time_s) and one.exact
    assert list(simulated.frame()["busbw"]) == pytest.approx(
        [line.busbw_bytes_per_s / 1e9 for line in simulated]
    )
    for call, said in (
        (lambda: busbar.predict(ranks="4"), "ranks is one number"),  # type: ignore[arg-type]
        (lambda: busbar.predict(sizes=[]), "0 sizes"),
        (lambda: busbar.predict(sizes=None), "'None' is no size"),  # type: ignore[arg-type]
        (lambda: busbar.predict(fit=5), "fit is a file, not 5"),  # type: ignore[arg-type]
        (lambda: busbar.predict(None), "no collective 'None'"),  # type: ignore[arg-type]
        (lambda: busbar.predict(sizes="1K,1Q"), "sizes: '1Q' is no size"),
        (lambda: busbar.predict(algorithms="rng"), "algorithms: allreduce: no algorithm 'rng'"),
        (lambda: busbar.predict(algorithms=[]), "algorithms has no items"),
        (lambda: busbar.predict("broadcast", root=8), "root 8 is not a rank; there are 8, from 0"),
        (lambda: busbar.predict("broadcast", root=-1), "root -1 is not a rank"),
        (lambda: busbar.predict("broadcast", root="0"), "root '0' is not a rank"),  # type: ignore[arg-type]
        (lambda: busbar.simulate(machine="torus:2x2", root=4), "root 4 is not a rank"),
        (lambda: busbar.predict(algorithms=5), "not 5"),  # type: ignore[arg-type]
        (lambda: busbar.predict(topology="none.txt"), "topology none.txt"),
        (lambda: busbar.predict("broadcast", ranks=3, root=9), "root 9"),
        (lambda: busbar.predict(algorithms=max), "max is no function in Python"),
        (lambda: busbar.simulate(machine="torrus"), "no machine 'torrus'"),
        (lambda: busbar.simulate(machine="torus:2x2", ranks=9), "places for 4 ranks, not for 9"),
    ):
        with pytest.raises(Unsupported, match=re.escape(said)):
            call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (busbar.load, "none.json: cannot be read: No such file"),
        (lambda path: busbar.compare(path, path), "none.json: cannot be read"),
        (lambda path: busbar.predict(fit=path), "none.json: cannot be read"),
        (lambda path: busbar.predict(topology=path), "topology {}: cannot be read"),
        (lambda path: busbar.predict(algorithms=str(path)), "none.json: cannot be read"),
        (lambda path: busbar.simulate(machine=str(path)), "machine {}: no such file"),
        (busbar.topology, "none.json: cannot be read"),
        (lambda path: busbar.pick(2, path), "none.json: cannot be read"),
        (lambda path: busbar.step(path, ranks=2), "none.json: cannot be read"),
        (lambda path: busbar.step("toy", ranks=2, fit=path), "none.json: cannot be read"),
        (lambda path: busbar.step("toy", ranks=2, topology=path), "topology {}: cannot be read"),
        (lambda path: busbar.run(ranks=2, arrival=path), "arrival: {}: cannot be read"),
        (lambda path: busbar.run("alltoallv", ranks=2, counts=path), "none.json: cannot be read"),
        (lambda path: busbar.run(ranks=2, algorithms="auto", tuning=path), "there is no {}; "),
        (lambda path: busbar.run(ranks=2, algorithms=str(path)), "none.json: cannot be read"),
        (lambda path: busbar.run(ranks=2, hostfile=path), "hostfile {}: there is no such file"),
    ],
)
def test_a_missing_file_is_pythons_error_too(
    call: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    """Rule: a file that does not exist is MissingFile with its name, whichever call was to read it.

    The message has the parameter's name, not the option's.
    """
    path = tmp_path / "none.json"
    with pytest.raises(MissingFile, match=re.escape(said.format(path))) as caught:
        call(path)
    assert caught.value.filename == str(path) and "--" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        call(path)


def test_maps_and_picks(tmp_path: Path) -> None:
    """Rule: a map and a pick have their nouns, their text, and errors of ours."""
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX)
    machine = busbar.topology(path)
    assert len(machine.topology.gpus) == 3 and "NV2" in str(machine)
    assert "NV2" in machine._repr_html_()
    of_findings = get_type_hints(vars(type(machine))["findings"].fget)["return"]
    assert get_args(of_findings) == (busbar.Finding,)
    picked = busbar.pick(2, path)
    assert set(picked.order) == {"GPU0", "GPU1"} and "best 2" in str(picked)
    assert len(picked.alternatives) == 2 and "<pre>" in picked._repr_html_()
    assert (
        isinstance(picked.best, busbar.Pick) and repr(picked.best) == "<Pick: GPU0 GPU1, 40.0 GB/s>"
    )
    with pytest.raises(
        Unsupported, match=r"^pick: 4 GPUs wanted, 3 to choose from; k takes 1 to that"
    ):
        busbar.pick(4, path)
    with pytest.raises(ProbeError, match="busy=True needs NVML"):
        busbar.pick(2, path, busy=True)
    with pytest.raises(Unsupported, match="no objective"):
        busbar.pick(2, path, objective="rng")
    assert busbar.pick(2, path, exclude=[0]).order == busbar.pick(2, path, exclude="GPU0").order
    for k in (-1, 0, True, "two"):
        with pytest.raises(Unsupported, match=f"k is a number of GPUs from 1, not {k!r}"):
            busbar.pick(k, path)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"'\); files follow it: busbar\.pick\(2, FILE\)"):
        busbar.pick(path, 2)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"busbar\.pick: each file is an argument, not 3"):
        busbar.pick(2, 3)  # type: ignore[arg-type]
    rows = tmp_path / "run.jsonl"
    rows.write_bytes(to_jsonl(records(["ring"], [2], [1024])))
    maps: list[Callable[[], object]] = [
        lambda: busbar.topology(rows),
        lambda: busbar.predict(topology=rows),
        lambda: busbar.simulate(machine=str(rows)),
    ]
    for call in maps:
        with pytest.raises(BusbarError, match=r'not a map: busbar\.load\("FILE"\) reads them'):
            call()
    assert get_args(ObjectiveName) == tuple(one.value for one in Objective)
    for number in (-1, "3"):
        with pytest.raises(Unsupported, match=f"a number of sets from 0, not {number!r}"):
            busbar.pick(2, path, alternatives=number)  # type: ignore[arg-type]


class TestListening:
    """What a run says is heard while it runs."""

    @given(st.integers(0, 10**6), st.integers(1, 10**6), st.floats(0, 1e6))
    def test_progress_is_read_as_it_is_written(self, done: int, of: int, passed: float) -> None:
        """Rule: what `Screen` tells a pipe, whoever started the run understands."""
        screen = Screen(0)
        screen._pace = Pace([1.0], clock=lambda: passed)
        screen._done, screen._of, screen._doing = done, of, "ring 8 B float sum out"
        line = f"busbar: {screen._far()}\n"
        assert parse_progress(line) == RunProgress(done, of, "ring 8 B float sum out")
        assert error_messages(f"noise\n{line}busbar: a: b\n") == ["a: b"]

    def test_lines_are_heard_as_they_come(self) -> None:
        """Rule: every line of standard error is heard, and given in the end, from any thread."""
        code = "import sys; sys.stderr.write('a\\nb\\n'); sys.exit(3)"
        heard: list[str] = []

        def start() -> child.Ended:
            return child.run([sys.executable, "-c", code], {}, on_line=heard.append)

        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(start).result()
        assert (ended.status, ended.err, heard) == (3, "a\nb\n", ["a\n", "b\n"])

    def test_a_run_is_told_when_its_time_is_over(self) -> None:
        """Rule: a process that goes on past its time is told to end, as if by a user."""
        code = "import signal; signal.signal(2, signal.default_int_handler); signal.pause()"
        line = [sys.executable, "-c", code]
        ended = child.run(line, {}, signal.SIGTERM, within=0.01, on_line=lambda line: None)
        assert (ended.status, ended.interrupted) == (128 + signal.SIGTERM, 0)
        assert child.run([sys.executable, "-c", ""], {}, within=60.0).status == 0

    def test_an_exception_of_the_caller_ends_the_process(self) -> None:
        """Rule: what a signal's handler raises while a process runs comes out; the process ends."""
        code = "import os, signal; os.kill(os.getppid(), signal.SIGALRM); signal.pause()"
        began: list[int] = []

        def expire(*_: object) -> None:
            began.extend(child.below(os.getpid()))
            raise TimeoutError("of the caller")

        before = signal.signal(signal.SIGALRM, expire)
        try:
            with pytest.raises(TimeoutError, match="of the caller"):
                child.run([sys.executable, "-c", code], {}, on_line=lambda line: None)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert began and not set(began) & set(child.below(os.getpid()))

    def test_a_notebook_gets_a_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rule: the bar follows the run's lines, shows names as text, and goes at the end."""
        shown: list[dict[str, str]] = []

        class Display:
            def __call__(self, data: dict[str, str], **_: object) -> Display:
                shown.append(data)
                return self

            def update(self, data: dict[str, str], **_: object) -> None:
                shown.append(data)

        monkeypatch.setattr(launch, "_notebook", Display)
        with launch.show_progress("allreduce", None) as heard:
            heard("busbar: 3 of 24 done, 5 s passed, about 1 min 05 s left: <ring> 8 B\n")
            heard("busbar: something else\n")
        assert len(shown) == 3 and 'value="3" max="24"' in shown[1]["text/html"]
        assert "&lt;ring&gt; 8 B" in shown[1]["text/html"] and shown[2] == {"text/plain": ""}
        with launch.show_progress("allreduce", False) as heard:
            heard("busbar: 3 of 24 done, 5 s passed: x\n")
        assert len(shown) == 3
        begin = RunProgress(0, 24, "2 min 20 s at most in all")
        with launch.show_progress("allreduce", None, lambda: begin):
            assert "0 of 24: 2 min 20 s at most in all" in shown[-1]["text/html"]
        with launch.show_progress("allreduce", False, lambda: pytest.fail("nobody sees it")):
            pass


@pytest.mark.parametrize(
    ("options", "launches"), [({}, 1), ({"ranks": [1, 2]}, 2), ({"launches": 2, "ranks": 2}, 2)]
)
def test_a_plan_is_what_a_run_measures(options: dict[str, Any], launches: int) -> None:
    """Rule: `plan` has the rows and launches that `run` with the same arguments has.

    Its limit is that of all rows, and ``total`` is of the whole call, whatever it launches.
    """
    asked: dict[str, Any] = {
        "ranks": 2, "algorithms": ["ring", _walk], "sizes": ["1K", "64K"], "transport": "inproc",
    } | options  # fmt: skip
    plan = busbar.plan(**asked, iters=2)
    rows = busbar.run(**asked, iters=2)
    assert (plan.rows, plan.launches) == (len(rows), launches) and plan.at_most_s is None
    assert str(plan).endswith("launch, without a time limit") == (launches == 1)
    limits = [busbar.plan(**asked, budget=budget).at_most_s or 0.0 for budget in (1.0, 2.0)]
    assert limits[1] - limits[0] == pytest.approx(plan.rows)
    limited = busbar.plan(**asked, total="1s")
    assert limited.at_most_s == 1.0 and ", 1 s at most in all" in str(limited), str(limited)


def test_a_plan_says_what_is_wrong_under_its_own_name() -> None:
    """Rule: `plan` refuses what `run` refuses, and a number of ranks that it cannot know."""
    with pytest.raises(Unsupported, match=r"^busbar\.plan: no option 'begin'"):
        busbar.plan(begin="64K")  # type: ignore[call-arg]
    with pytest.raises(Unsupported, match=r"^busbar\.plan: give ranks= beside launcher="):
        busbar.plan(launcher="srun")


def test_frames_tell_launches_apart_and_files_do_not_matter(tmp_path: Path) -> None:
    """Rule: `launch` numbers launches over all parts; rows are equal whatever file they are of."""
    pytest.importorskip("pyarrow")
    parts = []
    for second in (1, 2):
        made = records(["ring"], [2], [1 << 20], started=f"2026-11-27T10:00:0{second}")
        path = tmp_path / f"{second}.jsonl"
        path.write_bytes(to_jsonl(made))
        parts.append(busbar.load(path))
    both = parts[0] + parts[1]
    per_launch = len(parts[0])
    assert list(both.frame()["launch"]) == [0] * per_launch + [1] * per_launch
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(to_parquet(parts[0]))
    assert busbar.load(copy) == parts[0] != parts[1]
    assert sum(parts, MeasuredRows()) == both
    table = tmp_path / "both.csv"
    table.write_bytes(CsvLines().lines(list(both)))
    assert list(busbar.load(table).frame()["launch"]) == list(both.frame()["launch"])


@pytest.mark.parametrize("times", [[1e-3, 2e-3, 9e-3, 4e-2, 5e-2, 6e-2]])
def test_a_wide_interval_is_read_again(times: list[float], tmp_path: Path) -> None:
    """Rule: what a run writes is read: an interval of few values ends where times are possible."""
    rows = flat([allreduce("ring", 2, 1 << 20, times)])
    assert rows[0].low_s is not None and rows[0].low_s >= 1e-5 * times[0]
    path = tmp_path / "x.csv"
    path.write_bytes(CsvLines().lines(rows))
    assert len(busbar.load(path)) == len(rows) and not busbar.load(path).notes


def test_the_page_is_typed(run: Run, tmp_path: Path) -> None:
    """Rule: mypy --strict finds nothing in what docs/python.md shows, but for its error.

    Nor in arithmetic on what lines of results always have.
    """
    pytest.importorskip("mypy")
    shown = doctest.DocTestParser().get_examples((REPO / "docs" / "python.md").read_text())
    page = tmp_path / "page.py"
    lines = (
        "for pair in busbar.compare(rows, rows): print(pair.new / pair.base, pair.change + 1)\n"
        "for time in busbar.predict(): print(time.time_s * 1e6, time.busbw_bytes_per_s / 1e9)\n"
    )
    page.write_text("".join(one.source for one in shown if one.exc_msg is None) + lines)
    words = ["--strict", "--cache-dir", str(REPO / ".mypy_cache"), "--config-file", os.devnull]
    done = run(sys.executable, "-m", "mypy", *words, str(page), cwd=REPO)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_what_a_user_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: docs/python.md prints what it shows. Here ranks are threads, which start sooner.

    Of measured rows everything but the figures is compared, and which algorithm is the fastest.
    """
    for library in ("pandas", "matplotlib"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    for call in (running.run, running.step):
        threads = partial(call, transport="inproc")
        monkeypatch.setattr(busbar, call.__name__, threads, raising=False)
    text = (REPO / "docs" / "python.md").read_text()
    page = doctest.DocTestParser().get_doctest(text, {}, "python.md", "python.md", 0)
    measured = [one for one in page.examples if _is_measured(one)]
    for one in measured:
        one.options[_FIGURES] = True
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(_Figures(), optionflags=flags).run(page)
    assert result.attempted > 15 and result.failed == 0 and len(measured) > 5


_FIGURES = doctest.register_optionflag("FIGURES")


def _is_measured(example: doctest.Example) -> bool:
    """True if an output has fractions that a run measured, and no model computed."""
    computed = example.source.startswith(("busbar.predict", "busbar.simulate"))
    return bool(re.search(r"[0-9]\.[0-9]", example.want)) and not computed


class _Figures(doctest.OutputChecker):
    """With the flag FIGURES, outputs are equal that differ in figures and names of algorithms."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if optionflags & _FIGURES:
            want, got = map(_without_figures, (want, got))
        return super().check_output(want, got, optionflags)


def _without_figures(text: str) -> str:
    """A text with # for figures, their units and open intervals, and one name for ring and ps."""
    text = re.sub(r"~|\b(?:ring|ps)\b", lambda mark: "" if mark[0] == "~" else "NAME", text)
    text = re.sub(r"[-+]?[0-9][0-9.]*(?:e[-+][0-9]+)?(?:[KMx%]| (?:[num]?s|[GM]B/s)\b)?", "#", text)
    text = re.sub(r"\bfirst, last\b", "figure", re.sub("─+", "─", text))
    text = re.sub(r"(?:# or more|cannot tell from)(?= +NAME)", "#", text)
    return re.sub(r"#(?:[, -]*#| +-(?= ))*", "#", text)


def test_outputs_differ_in_more_than_figures() -> None:
    """Rule: the comparison of the page's outputs overlooks figures alone."""
    shown = "sizes  algorithm  first, last      next\n64K - 1M  ~ring  63.2, 54.5 GB/s  0.8-5x ps\n"
    for alike in ("sizes algorithm figure next\n64K ps 1.2 us cannot tell from ring\n",):
        assert _without_figures(shown).split() == _without_figures(alike).split()
    for other in (shown.replace("next", "other"), shown.replace("ring", "tree"), shown[:-4]):
        assert _without_figures(shown).split() != _without_figures(other).split()


def test_the_notebook_shows_what_is_printed_today() -> None:
    """Rule: outputs stored in docs/notebook.ipynb that no measured row is in are those of today."""
    pytest.importorskip("matplotlib")
    cells = json.loads((REPO / "docs" / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"busbar": busbar}
    compared = 0
    for source, outputs in (("".join(c["source"]), c.get("outputs", [])) for c in cells):
        if not outputs or "rows" in source:
            continue
        *body, last = ast.parse(source).body
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            else:
                value = exec(compile(ast.Module([last], []), "cell", "exec"), names)
        for one in outputs:
            shown, today = one.get("text"), printed.getvalue()
            if shown is None:
                shown, today = one["data"]["text/html"], value._repr_html_()
            both = (
                re.sub(r"<img [^>]*>|[^>\s]*/(?=nccl-tests\.log)", "", "".join(text))
                for text in (shown, today)
            )
            assert next(both) == next(both)
            compared += 1
    assert compared > 3


@pytest.mark.thorough
def test_the_notebook_runs(mpich: Mpi) -> None:
    """Rule: docs/notebook.ipynb does what it shows, cell by cell."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for library in ("pandas", "matplotlib"):
        pytest.importorskip(library)
    book = nbformat.read(REPO / "docs" / "notebook.ipynb", as_version=4)
    said = json.dumps(book)
    assert "Traceback" not in said and str(REPO) not in said
    where = {"metadata": {"path": str(REPO)}}
    nbclient.NotebookClient(book, timeout=300, resources=where).execute()
    outputs = [one for cell in book.cells for one in cell.get("outputs", [])]
    assert "text/html" in {kind for one in outputs for kind in one.get("data", {})}


_UNNAMED = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
       65536         16384     float    none      -1    10.00    6.55    4.91      0
      131072         32768     float    none      -1    12.00   10.92    8.19      0
"""


def test_a_folder_of_logs_is_read(tmp_path: Path) -> None:
    """Rule: `load` of a folder without records reads its logs, also those that end with .txt."""
    for name in ("a.txt", "b.log", "c.out", "d.md"):
        (tmp_path / name).write_text(_UNNAMED)
    (tmp_path / "e.txt").write_text("no row")
    rows = busbar.load(tmp_path, ranks=4)
    assert [Path(row.run.source).name for row in rows] == ["a.txt"] * 2 + ["b.log"] * 2 + [
        "c.out"
    ] * 2
    assert any("e.txt" in note for note in rows.notes)


def test_a_collective_that_no_line_names_is_given(tmp_path: Path) -> None:
    """Rule: `load` takes the collective of logs that name none; without it the rows say so.

    If rows state another collective, or another number of ranks, it is an error.
    """
    log = tmp_path / "x.log"
    log.write_text(_UNNAMED)
    rows = busbar.load(log, ranks=4)
    assert repr(rows) == "<MeasuredRows: 2 rows: unnamed collective>" and rows[0].collective == ""
    named = busbar.load(log, ranks=4, collective="allgather")
    assert repr(named) == "<MeasuredRows: 2 rows: allgather>" and named[0].ranks == 4
    log.write_text(f"# Collective test starting: alltoall_perf\n{_UNNAMED}")
    assert busbar.load(log, ranks=4, collective="alltoall")[0].collective == "alltoall"
    with pytest.raises(ReportError, match=r"x\.log has alltoall, not allgather; leave collective"):
        busbar.load(log, collective="allgather")
    (tmp_path / "run.jsonl").write_bytes(to_jsonl(records(["ring"], [2], [1024])))
    with pytest.raises(ReportError, match=r"run\.jsonl has 2, not 4; .* rows\.filter\(ranks="):
        busbar.load(log, tmp_path / "run.jsonl", ranks=4)
    with pytest.raises(Unsupported, match="no collective 'algather'; did you mean allgather"):
        busbar.load(log, collective="algather")


def test_what_a_data_frame_has_names_frame(tmp_path: Path) -> None:
    """Rule: rows given to pandas, or used as its tables are, name `frame` in the error."""
    pandas = pytest.importorskip("pandas")
    (tmp_path / "x.log").write_text(_UNNAMED)
    rows = busbar.load(tmp_path / "x.log", ranks=4)
    for wrong in (lambda: pandas.DataFrame(rows), lambda: rows.columns):  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"rows\.frame\(\) is a pandas DataFrame"):
            wrong()
    with pytest.raises(AttributeError, match=r"no compare; busbar\.compare\(rows, others\)"):
        rows.compare(rows)  # type: ignore[attr-defined]
    assert not hasattr(rows, "columns") and pickle.loads(pickle.dumps(rows)) == rows
