"""What schedulers and pages are given is quoted, whatever other machines have printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.qualify import text
from bench.qualify.evidence import Evidence
from bench.qualify.failures import find_failures
from bench.qualify.lines import MARK, Line, Outcome, observe, parse
from bench.qualify.model import (
    Cluster,
    Ending,
    HostReport,
    Launch,
    Limits,
    Observation,
    Stage,
    State,
    Verdict,
)
from bench.qualify.page import page

CLUSTER = Cluster(("n1", "n2", "n10"), {"n1": "b", "n2": "a", "n10": "a"})
WORDS = st.text(st.characters(codec="utf-8"), max_size=60)


def _verdict(host: str, state: State, reason: str = "", **more: float) -> Verdict:
    return Verdict("host", (host,), state, reason, launches=(1, 2), **more)  # type: ignore[arg-type]


@given(reason=WORDS)
def test_scripts_quote_reasons(reason: str) -> None:
    """A shell reads one command a bad host, of five words, whatever the reason holds."""
    verdicts = [_verdict("n1", State.CRASHES, reason), _verdict("n2", State.GOOD)]
    _, _, *lines = text.drain_script(verdicts).splitlines()
    (words,) = [shlex.split(line) for line in lines]
    assert words[:4] == ["scontrol", "update", "NodeName=n1", "State=DRAIN"]
    assert len(words) == 5
    assert words[4].startswith("Reason=busbar: crashes")
    assert words[4].isprintable() or "\xa0" in words[4] or not reason.isascii()


@given(reason=WORDS, host=WORDS)
def test_metrics_are_prometheus_lines(reason: str, host: str) -> None:
    """Each line is a comment or a sample; a label's line breaks and quotes are escaped."""
    verdicts = [_verdict(host, State.SLOW, reason, ratio=0.5)]
    sample = re.compile(r'[a-z_]+(\{([a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? [-+.e0-9]+')
    for line in text.metrics(verdicts, 1.5, 1.7e9).split("\n")[:-1]:
        assert line.startswith(("# HELP busbar_qualify_", "# TYPE busbar_qualify_")) or (
            sample.fullmatch(line)
        )


def test_a_host_that_is_unknown_is_not_exported_as_bad() -> None:
    """Rule: host_good is 1 or 0 of known hosts alone, with a label that does not change."""
    states = {"n1": State.GOOD, "n2": State.SLOW, "n3": State.CANNOT_TELL}
    lines = text.metrics([_verdict(*one) for one in states.items()], 1.0, 2.0).splitlines()
    good = [line for line in lines if line.startswith("busbar_qualify_host_good")]
    assert good == [f'busbar_qualify_host_good{{host="n{n}"}} {2 - n}' for n in (1, 2)]
    for host, state in states.items():
        assert f'busbar_qualify_host_state{{host="{host}",state="{state.value}"}} 1' in lines


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))


@given(detail=WORDS)
def test_a_page_has_the_same_elements_whatever_hosts_print(detail: str) -> None:
    """What a host prints is text in the page, never an element or an attribute."""

    def tags(words: str) -> list[tuple[str, tuple[str, ...]]]:
        report = HostReport("n1", Ending.CRASHED, words, 3)
        seen = Observation(Launch(0, 0, Stage.ALONE, ("n1",)), (report,))
        parser = _Tags()
        parser.feed(page(CLUSTER, [_verdict("n1", State.CRASHES, words)], [seen], "").decode())
        return parser.tags

    assert tags(f"<script>{detail}") == tags("plain")


def test_the_matrix_marks_suspects() -> None:
    """Rates stand as shares of the median pair, and a suspect's slow pairs have a frame."""
    seen = [
        Observation(
            Launch(n, 0, Stage.PAIRS, hosts),
            tuple(HostReport(host, Ending.FINISHED) for host in hosts),
            {"forward": (rate,), "backward": (1e9,)},
        )
        for n, (hosts, rate) in enumerate(
            [(("n1", "n2"), 6e8), (("n1", "n10"), 1e9), (("n2", "n10"), 1e9)]
        )
    ]
    drawn = page(CLUSTER, [_verdict("n1", State.SLOW, ratio=0.6)], seen, "").decode()
    assert len(re.findall(r'outline[^"]*">60</span>', drawn)) == 1
    assert drawn.count("outline:2px") == 1
    assert "<mark>n1</mark>" in drawn


@pytest.mark.parametrize("racks", [True, False])
def test_the_matrix_holds_pairs_to_their_likes(racks: bool) -> None:
    """Rule: shares are of pairs inside a rack, or across racks, and not of both levels together.

    Without known racks they are of the faster level, as the verdicts are.
    """
    hosts = tuple(f"n{n}" for n in range(6))
    cluster = Cluster(hosts, {host: f"r{n // 3}" for n, host in enumerate(hosts)} if racks else {})
    seen = []
    for a, b in combinations(range(6), 2):
        rate = 12e9 if a // 3 == b // 3 else 4e9
        rates = {"forward": (rate,), "backward": (rate,)}
        seen.append(Observation(Launch(len(seen), 0, Stage.PAIRS, (hosts[a], hosts[b])), (), rates))
    drawn = page(cluster, [], seen, "").decode()
    shares = re.findall(r'">(\d+)</span>', drawn)
    assert sorted(set(shares)) == (["100"] if racks else ["100", "33"]) and len(shares) == 30
    usual = "12 GB/s inside a rack and 4 GB/s across racks" if racks else "12 GB/s; framed"
    assert f"in % of the usual {usual}" in drawn.replace("12.0", "12").replace("4.00", "4")


def test_the_ring_goes_rack_by_rack_in_natural_order() -> None:
    """A ring over the good hosts enters each rack once; n2 is before n10."""
    verdicts = [_verdict(host, State.GOOD) for host in reversed(CLUSTER.hosts)]
    assert text.good_hosts(CLUSTER, verdicts) == ["n2", "n10", "n1"]


def test_the_sentence_names_hosts_links_and_uplinks() -> None:
    """One sentence has all that is bad, each by its kind, and what cannot be judged."""
    verdicts = [
        _verdict("n1", State.SLOW, ratio=0.6),
        _verdict("n2", State.CANNOT_TELL),
        _verdict("n10", State.GOOD),
        Verdict("link", ("n2", "n10"), State.SLOW, ratio=0.41),
        Verdict("uplink", ("n2", "n10"), State.SLOW, ratio=0.33),
    ]
    assert text.sentence(CLUSTER, verdicts) == (
        "1 of 3 hosts are good; n1 is slow (x0.60), the link n2 to n10 is slow (x0.41),"
        " the uplink of rack a is slow (x0.33), n2 cannot be judged"
    )


def test_hosts_of_which_none_can_be_judged_are_one_clause() -> None:
    """Rule: a total failure is said once, not once a host."""
    verdicts = [_verdict(host, State.CANNOT_TELL) for host in CLUSTER.hosts]
    assert text.sentence(CLUSTER, verdicts) == "none of 3 hosts can be judged"


def test_a_group_of_many_hosts_is_one_short_line() -> None:
    """Rule: hundreds of names are in the files, not in the table, the sentence and the metrics."""
    hosts = tuple(f"n{number}" for number in range(500))
    group = Verdict("group", hosts, State.CANNOT_TELL, ratio=0.7)
    sentence = text.sentence(
        Cluster(hosts), [_verdict(host, State.GOOD) for host in hosts] + [group]
    )
    shown = "group of 500 hosts (n0 n1 n2 …)"
    assert sentence == f"all 500 hosts are good; the {shown} cannot be judged"
    assert max(map(len, text.metrics([group], 1.0, 2.0).splitlines())) < 120
    few = text.subject(Verdict("group", hosts[:8], State.SLOW), Cluster(hosts))
    assert few == "the group " + " ".join(hosts[:8])
    odd = Cluster(("a", "b"), {"a": "²", "b": "1"})  # a digit that is no decimal
    assert text.good_hosts(odd, [_verdict(host, State.GOOD) for host in "ab"]) == ["a", "b"]


@given(st.text(max_size=80))
def test_no_output_of_a_launch_is_taken_for_more_than_it_is(words: str) -> None:
    """Text that is no line of a worker is none, and no text raises."""
    assert parse(words) is None
    line = parse(f"[0] {MARK}" + '{"event":"begun","rank":1,"host":"n1"}')
    assert line == Line(event="begun", rank=1, host="n1")
    assert parse(MARK + '{"event":"begun","rank":-1,"host":"n1"}') is None
    assert parse(MARK + '{"event":"finished","rank":0,"host":"n1","rates":{"x":[-1.0]}}') is None


PAIR = Launch(7, 1, Stage.PAIRS, ("a", "b"))
BOTH = [Line(event="begun", rank=n, host=host) for n, host in enumerate("ab")]
DONE = [
    Line(event="finished", rank=0, host="a", rates={"forward": (1.0,), "backward": (2.0,)}),
    Line(event="finished", rank=1, host="b"),
]


def _endings(lines: list[Line], outcome: Outcome) -> tuple[str, ...]:
    seen = observe(PAIR, lines, outcome, 1, {})
    return tuple(one.ending.value for one in seen.reports)


def test_who_ended_a_launch_is_told_from_who_was_ended() -> None:
    """Each way for a pair to fail, by what both hosts and the launcher printed."""
    late, failed = Outcome(None, "", 30), Outcome(1, "", 2)
    crash = Line(event="ended", rank=1, host="b", status=3, detail="x")
    then = Line(event="ended", rank=0, host="a", status=1, detail="peer lost")
    assert _endings([*BOTH, *DONE], Outcome(0, "", 2)) == ("finished", "finished")
    assert _endings([*BOTH, crash, then], failed) == ("stopped", "crashed")
    assert _endings(BOTH[:1], late) == ("stopped", "unreachable")
    assert _endings(BOTH, late) == ("hung", "hung")
    stopped = Line(event="stopped", rank=0, host="a")
    assert _endings([*BOTH, stopped], failed) == ("hung", "stopped")
    named = Outcome(255, "ssh: connect to host b port 22: Connection refused", 1)
    assert _endings([], named) == ("stopped", "unreachable")
    killed = "=   BAD TERMINATION OF ONE OF YOUR\n=   PID 7 RUNNING AT a\n=   KILLED BY SIGNAL: 9"
    assert _endings(BOTH, Outcome(9, killed, 1)) == ("crashed", "stopped")
    assert _endings([], Outcome(9, killed, 1)) == ("crashed", "stopped")


_HYDRA = "[mpiexec@head] main (/mpich/src/pm/hydra/mpiexec/mpiexec.c:270): process manager error"
_SSH = "ssh: connect to host b port 22: Connection refused"


def _why(*outcomes: Outcome, lines: Sequence[Line] = ()) -> str:
    """Why host b is bad, after launches on it alone that ended so, and one on a host that works."""
    seen = [
        observe(Launch(n, 0, Stage.ALONE, ("b",)), lines, one, 1, {})
        for n, one in enumerate(outcomes)
    ]
    works = observe(Launch(9, 0, Stage.ALONE, ("a",)), DONE[:1], Outcome(0, "", 1), 1, {})
    return find_failures(Evidence(Cluster(("a", "b")), Limits(), [*seen, works])).hosts[1].reason


def test_a_reason_is_no_line_of_a_launchers_source() -> None:
    """Rule: what the remote shell said in any launch is the reason; else the launcher's status.

    Hydra may end before it prints the remote shell's line.
    """
    said, silent = Outcome(255, f"{_SSH}\n{_HYDRA}\n", 1), Outcome(255, _HYDRA, 1)
    assert said.last == _SSH and silent.last == ""
    for both in ((said, silent), (silent, said)):
        assert _why(*both) == f"in 2 of 2 launches alone: {_SSH}"
    assert _why(silent, silent).endswith("the launcher ended with status 255, without a reason")


@pytest.mark.parametrize(
    "text",
    [
        "=   BAD TERMINATION OF ONE\n=   EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE"
        " EXIT STRING: Segmentation fault (signal 11)",
        "=   BAD TERMINATION OF ONE\n=   KILLED BY SIGNAL: 11 (Segmentation fault)",
        "process rank 0 with PID 6802 on node b exited on\nsignal 11 (Segmentation fault).",
    ],
)
def test_a_crash_names_its_signal(text: str) -> None:
    """Rule: the signal stands for a launcher's own status and exit code, and for a shell's 139."""
    began = [Line(event="begun", rank=0, host="b")]
    named = "signal 11 (SIGSEGV) in 2 of 2 launches alone"
    assert _why(*[Outcome(11, text, 1)] * 2, lines=began) == named
    ended = [*began, Line(event="ended", rank=0, host="b", status=139)]
    assert _why(*[Outcome(1, "", 1)] * 2, lines=ended) == named
    ended = [*began, Line(event="ended", rank=0, host="b", status=3, detail="no device")]
    told = "status 3 in 2 of 2 launches alone: no device"
    assert _why(*[Outcome(1, "", 1)] * 2, lines=ended) == told


def test_ranks_in_another_order_are_turned_round() -> None:
    """Where srun sorts its hosts, rank 0 of the pair (a, b) on b makes forward backward."""
    seen = observe(
        PAIR,
        [
            Line(event="finished", rank=0, host="B", rates={"forward": (1.0,), "backward": (2.0,)}),
            Line(event="finished", rank=1, host="A", wrong=4),
        ],
        Outcome(0, "", 1),
        1,
        {"A": "a", "B": "b"},
    )
    assert seen.rates == {"backward": (1.0,), "forward": (2.0,)}
    assert [(one.host, one.wrong) for one in seen.reports] == [("a", 4), ("b", 0)]
