"""For users of nccl-tests: each of its flags is taken, or refused with what to use instead."""

import re
from pathlib import Path

import pytest

from bench.options.nccl_flags import FLAGS, OTHERS, SET
from bench.options.options import Options, parse
from bench.run.screen import color
from busbar.errors import Unsupported
from tests.conftest import in_process, on_threads, table_rows

PAGE = Path(__file__).parents[3] / "docs" / "nccl-tests.md"
# All options of nccl-tests 2.19, as its help lists them.
THEIRS = set("tgbeifnmwNpcodrzyTGCSJaRxDVMuIKh")


def _parse(text: str) -> Options:
    return parse(text.split(), "allreduce")


def test_a_line_that_spells_all_defaults_runs() -> None:
    """Rule: nccl-tests' own defaults ask for nothing that is not done, so they change nothing."""
    theirs = (
        "-t 1 -i 1M -n 20 -m 1 -w 1 -N 1 -p 0 -c 1 -o sum -d float -r 0 -z 0 -y 0 -T 0 -G 0 -C 0"
        " -S 0 -a 1 -R 0 -D 0 -V 16 -M 0 -u 0 -I 0 -K 0"
    )
    ours = "-i 1M -n 20 -w 1 -a 1 --graph off"
    assert _parse(theirs) == _parse(ours)
    assert (_parse("-t 1").threads, _parse("-g 1").threads) == (None, None)
    assert _parse("-g 1").asks_for_gpus and not _parse("-t 4").asks_for_gpus


def test_every_flag_is_known_and_told_of() -> None:
    """Rule: no flag of nccl-tests is 'unrecognized', and the page has a line for each."""
    told = dict(re.findall(r"^\| `-(\w)`[^|]*\| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert set(told) == THEIRS - {"h"}
    for letter in THEIRS - {"h"}:
        with pytest.raises(Unsupported, match=r"argument|no |is no|exclude|number"):
            _parse(f"-{letter} nonsense,9 --graph compare -G 1 -e x")
    refused = {flag.letter for flag in FLAGS}
    assert refused == {letter for letter, text in told.items() if text.startswith("refused")}
    assert all(name in PAGE.read_text() for name in SET)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.letter)
def test_what_is_not_here_names_what_is(flag) -> None:  # type: ignore[no-untyped-def]
    """Rule: a value but the default is one line with the remedy, status 2, by either name."""
    for option in (f"-{flag.letter}", f"--{flag.name}"):
        status, out, err = on_threads("allreduce", option, "7 --ranks 2")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert flag.remedy in err


@pytest.mark.parametrize("names", OTHERS, ids="".join)
def test_what_a_newcomer_tries_names_what_is(names: tuple[str, ...]) -> None:
    """Rule: a launcher's flag, or one of other commands, gets the remedy, with a value or none."""
    for option in names:
        for value in ("", " 2"):
            with pytest.raises(Unsupported, match="not here: ") as said:
                _parse(option + value)
            assert OTHERS[names] in str(said.value)
    assert _parse("-n 7") == _parse("-n7")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--runs 10", "-n N sets the iterations"),
        ("-x 10", "OSU's -x N, warm-up iterations, is -w N"),
        ("-a ring", "is no whole number: time of an iteration over ranks: .*; did you mean -A rin"),
        ("-f full", "is no number: -f is the factor between sizes .*is -I"),
        ("-I 4K", "is no whole number: add columns"),
        ("-A Rign", "no algorithm 'rign'; did you mean ring"),
    ],
)
def test_another_programs_option_names_what_is_meant(line: str, said: str) -> None:
    """Rule: what hyperfine and OSU call so, or -a in place of -A, gets the option that is meant."""
    with pytest.raises(Unsupported, match=said):
        _ = _parse(line).algorithms


def test_names_are_known_in_any_case(tmp_path: Path) -> None:
    """Rule: a name whose meaning is certain is taken in upper case; a file's name stays."""
    taken = _parse("-d FLOAT,BF16 -o SUM -A Ring,LIBRARY --placement OUT --transport InProc")
    assert taken.dtypes == ("float", "bfloat16") and taken.ops == ("sum",)
    assert [choice.label for choice in taken.algorithms] == ["ring", "library"]
    assert (taken.placements, taken.transport) == (("out",), "inproc")
    assert _parse("-A ALL").every_algorithm and len(_parse("-d ALL").dtypes) > 5
    assert _parse(f"-A {tmp_path}/Mine.json").algorithms[0].name == f"{tmp_path}/Mine.json"
    assert parse(["--tests", "LATENCY", "-A", "Put"], "pt2pt").pairing.tests == ("latency",)


def test_other_programs_words_for_the_library_are_known() -> None:
    """Rule: NCCL and MPI are suggested as what they are here: the library's own algorithm."""
    for name in ("nccl", "mpi", "rccl"):
        with pytest.raises(Unsupported, match=f"no algorithm '{name}'; did you mean library"):
            _parse(f"-A {name}")


def test_t_and_g_are_ranks_as_threads() -> None:
    """Rule: -t T -g G is --threads T·G; -g wants GPUs, as ever when they are named."""
    assert _parse("-t 2 -g 4").threads == 8 and _parse("-t 3").threads == 3
    status, out, err = in_process("allreduce", "-t 3 -b 1K -e 1K -n 1 --transport inproc")
    assert status == 0 and "on 3 ranks" not in err and out.count("\n#  Rank") == 3
    status, out, err = in_process("allreduce", "-g 2 -b 8 -e 128M -f 2")
    assert (status, out) == (3, "") and "no NVIDIA driver here" in err


def test_the_usual_line_has_a_row_for_every_size_that_can_be() -> None:
    """Rule: -b 8 on many ranks is right from one element on; what has no row is said, once."""
    sizes = ["-n", "1", "--ranks", "5", "-A", "ring,ps,double_tree", "-b", "2", "-e", "32"]
    status, out, err = on_threads("allreduce", *sizes)
    shown = [int(row[0]) for row in table_rows(out)]
    assert status == 0 and shown == [4, 8, 16, 32] * (len(shown) // 4) and shown
    assert all(row[8] == row[12] == "0" for row in table_rows(out))
    assert err.count("left out: sizes up to 2 B") == 1
    sizes = ["-n", "1", "--ranks", "5", "-A", "ring", "-b", "8", "-e", "160", "--placement", "out"]
    status, out, err = on_threads("allgather", *sizes)
    assert status == 0 and [row[0] for row in table_rows(out)] == ["80"]
    assert "sizes up to 64 B: 64 bytes leave each of 5 ranks less than the 16" in err


def test_their_variables_are_not_passed_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a variable of nccl-tests' that is set and not read is said, with the option to use."""
    monkeypatch.setenv("NCCL_TESTS_SPLIT", "DIV 8")
    _, _, err = on_threads("allreduce", "--ranks 2 -b 1K -e 1K -n 1")
    assert err.count("NCCL_TESTS_SPLIT is set but not read; use --split, such as div:8") == 1


def test_groups_by_all_four_rules() -> None:
    """Rule: mod, div, and, or, the number in any base, as NCCL_TESTS_SPLIT has them."""
    rules = {
        "mod:2": [0, 1] * 4,
        "div:0x4": [0] * 4 + [1] * 4,
        "and:0b110": [0, 0, 2, 2, 4, 4, 6, 6],
        "or:6": [6, 7] * 4,
    }
    for text, groups in rules.items():
        rule = _parse(f"--split {text}").split
        assert rule is not None and [color(rule, rank) for rank in range(8)] == groups


@pytest.mark.parametrize("words", ["-A ring -A ps,tree", "-A ring,ps -A tree", "-A ring,ps,tree"])
def test_lists_that_are_given_again_add_up(words: str) -> None:
    """Rule: an option with a list keeps all of its lists, in their order."""
    found = _parse(f"{words} -d float -d half --sizes 1K --sizes 2K,4K -o sum -o max")
    assert [one.name for one in found.algorithms] == ["ring", "ps", "tree"]
    assert found.dtypes == ("float", "half") and found.ops == ("sum", "max")
    assert found.sizes == (1024, 2048, 4096)
    tests = parse(["--tests", "latency", "--tests", "bandwidth", "-A", "put", "-A", "get"], "pt2pt")
    assert tests.pairing is not None and tests.pairing.tests == ("latency", "bandwidth")
    assert [one.name for one in tests.algorithms] == ["put", "get"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-t 2 --ranks 2", "--ranks 4 for processes, or --threads 4"),
        ("-t 2 -g 2 --ranks 2", "--ranks 8"),
        ("-e 1Kb", "b is bits; 1K is bytes"),
        ("--host a,b", "say how many: --ranks N"),
        ("--host a,,b --ranks 2", "'' is no host name"),
        ("--host a --threads 2 --ranks 2", "on this host alone"),
        ("--hostfile none --ranks 2", "--hostfile none: there is no such file"),
        ("--host a --hostfile b --ranks 2", "not allowed with argument"),
        ("64M", "did you mean -b 64M -e 64M"),
        ("--min-size 64K", "did you mean --sizes or --minbytes?"),
        ("-o mulsum", "not here"),
        ("-o run.jsonl", "-o is the operation; --out FILE keeps records"),
    ],
)
def test_what_means_something_elsewhere_is_refused_with_the_way(words: str, said: str) -> None:
    """Rule: words of other programs are one line that says what to write here."""
    with pytest.raises(Unsupported, match=said):
        _parse(words)


def test_auto_without_a_file_says_how_one_is_made(tmp_path: Path) -> None:
    """Rule: -A auto where nothing was tuned names the command that tunes."""
    none = tmp_path / "none.json"
    status, out, err = on_threads("allreduce", f"--ranks 2 -e 1M -A auto --tuning {none}")
    assert (status, out) == (2, "") and f"there is no {none}; busbar tune" in err
