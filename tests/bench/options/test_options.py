"""Bad input is one clear line and exit status 2; nothing is silently something else."""

import re
from pathlib import Path

import pytest

from bench.options.options import Choice, parse, parse_choice
from busbar.arguments import time_in
from reports.readers.reading import parse as read_log
from tests.conftest import in_process, on_threads, table_rows


def test_the_default_is_the_promised_sweep() -> None:
    """Rule: 1 MB to 1 GB by 2, float, sum, both placements, ring and library."""
    options = parse((), "allreduce")
    assert options.sizes == tuple(2**k for k in range(20, 31))
    assert options.algorithms == (Choice("ring"), Choice("library"))
    assert (options.dtypes, options.ops) == (("float",), ("sum",))
    assert (options.placements, options.across) == (("out", "in"), "max")


def test_parameters_stand_behind_a_name() -> None:
    """Rule: name:key=value, with numbers and grids."""
    choice = parse_choice("torus:grid=4x2")
    assert choice == Choice("torus", (("grid", (4, 2)),)) and choice.label == "torus:grid=4x2"
    file = parse_choice("mine=./walk.json")
    assert (file.name, file.label, file.parameters) == ("./walk.json", "mine", ())


@pytest.mark.parametrize(
    ("line", "recorded"),
    [
        ("-b 1K -e 64K -n20 --budget=2 -A ring,ps", "-b 1K -e 64K -n 20 --budget 2 -A ring,ps"),
        ("--ranks 4 --out x.jsonl --append -H a,b --launches 3", "--launches 3"),
        ("-n 5 --launches 3 --seed 7 --launches 1 --launch 2/3:7 --after x", "-n 5 --launches 3"),
        ("--total 60 -A ring --after x --total=30", "--total 60 -A ring"),
        ("-n 5 -A mine=./walk.json", ""),
        ("", ""),
    ],
)
def test_the_options_of_a_measurement_are_recorded(line: str, recorded: str) -> None:
    """Rule: a record has the options that say what is measured; no file, no host, no path."""
    assert parse(line.split(), "allreduce").recorded == recorded


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("float32", "float"),
        ("FP32,fp16", "float,half"),
        ("bf16", "bfloat16"),
        ("float64,int", "double,int32"),
        ("fp8_e4m3", "f8e4m3"),
        ("uint8", "uint8"),
    ],
)
def test_types_have_their_names_elsewhere_too(given: str, known: str) -> None:
    """Rule: NumPy's and PyTorch's names of types are taken; records have nccl-tests'."""
    assert parse(("-d", given), "allreduce").dtypes == tuple(known.split(","))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("-A nosuch", "ring, sharded_ps"),
        ("-A ring=./walk.json", "an algorithm of Busbar is called so"),
        ("-A nonblocking=./walk.json", "an algorithm of Busbar is called so"),
        ("-A walk=./a.json,ring,walk=./b.json", "two files have this name"),
        ("-b 2M -e 1M", "above -e"),
        ("-i 0", "-i 0 does not advance"),
        ("-b 1 -e 2 --ranks 2", "2 bytes are less than one element of 4 bytes; give larger sizes"),
        ("-b 2K -e 1T -i 1", "give a larger increment"),
        ("-f 1.000001", "more than 10000 sizes"),
        ("-f nan", "does not advance"),
        ("-f inf", "does not advance"),
        ("-e 99999999999T", "more than any memory has"),
        ("-t 2 -g 2", "-g has no effect with --transport inproc"),
        ("--transport shm --ranks 2 --segment 1M", "no effect with --transport shm"),
        ("--transport mpi --ranks 2 --segment few", "is no size"),
        ("--transport mpi --ranks 2 --in-flight 0", "from 1 to 64"),
        ("--threads 3 -t 2", "-t x -g makes 2"),
        ("-t 2 --ranks 3", "give --ranks 6 for processes"),
        ("-G 1 --graph off", "exclude each other"),
        ("-I 2", "invalid choice"),
        ("-c 5.5", "or timed, for every timed iteration"),
        ("-c timed --timing loop", "leave out --timing loop"),
        *((f"--split {rule}", "of mod:N, div:N") for rule in ("mod", "mod:0", "xor:2", "or:x")),
        ("--ranks 2,4 -J x.json", "-J has room for one launch"),
        ("--ranks 2,4 --split mod:2", "exclude each other"),
        ("--ranks 2,4 --threads 2", "exclude each other"),
        ("--launches 2 -J x.json", "-J has room for one launch"),
        ("--launches 2 --split mod:2", "exclude each other"),
        ("--launches 2 -N 0", "would never end"),
        ("--launches 0", "at least 1"),
        ("--launch nonsense", "NUMBER/OF:SEED"),
        ("--grid 4", "grid such as"),
        ("--ranks 2 --out=", "names no file"),
        ("--ranks 6 -A torus:grid=4x4", "4x4 grid does not fit 6"),
        ("--ranks 6 -A recursive_doubling", "use tree, or halving_doubling"),
        ("--ranks 2 -A torus:grid", "name:key=value"),
        ("-d flaot", "no data type 'flaot'; did you mean float?"),
        ("-A Rign", "no algorithm 'rign'; did you mean ring?"),
        ("--ranks 2 --threads 8", "--ranks 2 starts 2 processes, and --threads 8 makes so many"),
        ("-o mean", "no operation 'mean'"),
        ("-f 1", "does not advance"),
        ("-f 2 -i 1M", "exclude each other"),
        ("-b x", "no size"),
        ("-b -1K", "-1K: a size cannot be negative"),
        ("--sizes 4K,-.5K", "-.5K: a size cannot be negative"),
        ("-o sum,all", "sum,all: all stands alone"),
        ("-d float,all", "float,all: all stands alone"),
        ("-A ring,all", "ring,all: all stands alone"),
        ("-n 0", "at least 1"),
        ("-a 4", "invalid choice"),
        ("--sync barrier --arrival zero", "--arrival needs --sync window"),
        ("--sync window --timing loop", "leave out --timing loop"),
        ("--arrival zero -a 1", "earliest start to the latest end"),
        ("--arrival ramp", "late:RANK:US"),
        ("--arrival late:1:99999999", "at most 10 s"),
        ("--arrival /nowhere/a.csv", "cannot be read"),
        ("--ranks 2 --launches 2 --arrival all", "write --arrival all:US"),
        ("--ranks 2 --threads 2 --arrival late:2:5", "only ranks 0 to 1"),
        ("--wait-quiet 3x", "is no time; write 30s, 10m, 2h, or a number of seconds"),
        ("--bogus", "unrecognized"),
        ("-n 1000000000000", "at most 10000000"),
        ("-n 1" + 400 * "0", "at most 10000000 iterations"),
        ("-w 10000001", "at most 10000000"),
        ("-n 2²", "no whole number"),
        ("--ranks 2²", "no whole number"),
        ("--ranks 1000000000 --dry-run", "at most 1024"),
        ("--ranks 5000", "at most 1024"),
        ("-t 1024 -g 2 --transport auto", "at most 1024 are threads"),
        ("--grid 2²x2", "write a grid such as 4x4"),
        ("--gpus 2² --transport nccl", "numbers joined by commas"),
        ("--budget 1e308", "at most 1e+07"),
        ("--budget nan", "nan seconds"),
        ("-T 1e308", "at most 1e+07"),
        ("-b 1 -e 900000 -i 1 --dry-run", "give a larger increment"),
        ("--ranks 2 -r 2", "ranks 0 to 1"),
        ("--ranks 2 --out /proc/none/a.json", "no folder /proc/none"),
        ("--ranks 2 --out /tmp/a.txt", ".jsonl"),
        ("--ranks 2 --out /proc/x/", "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv: str, says: str) -> None:
    """Rule: one line on standard error that helps, nothing on standard output, exit status 2."""
    status, out, err = on_threads("allreduce", argv)
    assert (status, out, err.count("\n")) == (2, "", 1) and says in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.5", 0.5), ("30s", 30), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    """Rule: every option that takes a time takes a unit; a number alone is in the help's unit."""
    options = parse(["--budget", text, "-T", text, "--wait-quiet", text], "allreduce")
    assert options.budget == options.timeout == options.wait_quiet == seconds
    minutes = time_in("m", 0.05, 100_000)
    assert [minutes(one) for one in ("90s", "2h", "7")] == [1.5, 120, 7]


@pytest.mark.parametrize("text", ["0", "0.0", "00", "0s"])
def test_no_time_out_is_a_zero_in_any_form(text: str) -> None:
    """Rule: -T 0, and timeout=0.0 of Python, which is --timeout=0.0 here, never end a row."""
    assert parse((f"--timeout={text}",), "allreduce").timeout is None


def test_hints_name_no_hidden_option() -> None:
    """Rule: what is not in --help is suggested to nobody."""
    assert "did you mean" not in in_process("allreduce", "--pattern pairs")[2]


def test_ranks_and_nccl_tests_threads_are_told_apart() -> None:
    """Rule: who gave -g is told of -g, and of what gives a process a GPU."""
    status, _, err = in_process("allreduce", "--ranks 2 -g 8")
    assert status == 2
    assert "-g (times -t) makes 8 threads of one process: give --ranks 8 alone" in err


def test_a_quiet_run_prints_its_closing_sentence_alone(tmp_path: Path) -> None:
    """Rule: --quiet prints one sentence for each thing measured; its files are those of any run.

    The line on launches follows where an interval tells something.
    """
    words = ("--ranks 2 -b 1K -e 2K -n 8 --placement out --out", str(tmp_path / "a.jsonl"))
    whole, short = (
        on_threads("allreduce", *words, "-A ring,ps", more) for more in ("", "--quiet --overwrite")
    )
    assert whole[0] == short[0] == 0 and table_rows(whole[1])
    first, second, *more = short[1].replace("\n  ", " ").splitlines()
    assert more == [] or (more[0].startswith("one launch: ") and not more[1:])
    assert re.match(r"((ring|ps) (was|may be)|cannot tell whether) .* (from 1K to|at) [12]K", first)
    assert re.match("ps took |cannot tell ", second) and "should take 2 times" in second
    assert (tmp_path / "a.jsonl").read_text().count('"collective"') == 4
    alone = on_threads("allreduce", *words, "-A ring --quiet --overwrite")[1]
    assert re.fullmatch(
        r"highest busbw \S+ GB/s: ring at [12]K\none launch: a comparison .*\n", alone
    )


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("-b 8 -e 1M -f 8", "minBytes 8 maxBytes 1048576 step: 8(factor)"),
        ("-b 1K -e 2500 -i 1K", "minBytes 1024 maxBytes 2500 step: 1024(bytes)"),
        ("--sizes 4K,1K", "minBytes 1024 maxBytes 4096 "),
    ],
)
def test_a_header_has_the_sizes_that_were_asked_for(words: str, ends: str) -> None:
    """Rule: as in nccl-tests, also where the sweep ends below; readers count the same sizes."""
    status, text = on_threads("allreduce", "--ranks 2 -A ring -n 1 -c 0 --placement out", words)[:2]
    assert status == 0 and ends in text
    sizes = [row.size for row in read_log(text).rows]
    assert sizes == list(parse(words.split(), "allreduce").sizes)
    assert not [note for note in read_log(text).notes if note.broken]
