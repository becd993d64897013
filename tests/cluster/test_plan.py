"""Plans of networks: what options say, which links there are, and the commands that make them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster import cpu, main, text
from bench.cluster.arguments import ClusterOptions
from bench.cluster.commands import making
from bench.cluster.launchers import check_hosts, launching, starts_ranks, variables
from bench.cluster.main import ClusterCommand
from bench.cluster.network import Network
from bench.cluster.use import Use, counters, picture, used
from bench.timing.clock import VARIABLE, skew
from busbar.counters import Look
from busbar.errors import Unavailable, Unsupported
from busbar.host import PORT_RATE, emulated_port_rate
from busbar.units import format_link_rate


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Networks of every shape."""
    racks, per = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    hosts = racks * per
    host, rates = st.integers(0, hosts - 1), st.floats(1e5, 1e9)
    pairs = st.tuples(host, host).filter(lambda pair: pair[0] < pair[1])
    return Network(
        hosts=hosts,
        rate=draw(st.floats(1e5, 1e9)),
        per_rack=per if racks > 1 else 0,
        taper=draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])),
        slow=draw(st.dictionaries(host, rates, max_size=2)),
        slow_out=draw(st.dictionaries(host, rates, max_size=2)),
        slow_in=draw(st.dictionaries(host, rates, max_size=2)),
        uplinks=draw(st.dictionaries(st.integers(0, racks - 1), rates)) if racks > 1 else {},
        pairs=draw(st.dictionaries(pairs, rates, max_size=3)) if hosts > 1 else {},
        mtu=draw(st.sampled_from([1500, 9000])),
    )


def _rates(network: Network) -> dict[tuple[str, str], float]:
    """Bytes/s of every shaped device, by the namespace that it is in."""
    found: dict[tuple[str, str], float] = {}
    for command in making(network, 1):
        words = command.words
        if words[0] == "tc" and "tbf" in words:
            where = words[2] if words[1] == "-n" else ""
            device, rate = words[words.index("dev") + 1], words[words.index("rate") + 1]
            assert (where, device) not in found
            found[where, device] = int(rate.removesuffix("bit")) / 8
    return found


@given(networks())
def test_every_link_is_shaped_once_at_each_end(network: Network) -> None:
    """Rule: both ends of each link have a shaper, of the rate at which they send."""
    found = _rates(network)
    for cable in network.cables():
        if cable.host is not None:
            upper, lower = ("", cable.device), (f"host{cable.host}", "eth0")
        else:
            upper, lower = ("", f"down{cable.rack}"), ("", cable.device)
        assert found.pop(lower) == pytest.approx(cable.up, abs=1)
        assert found.pop(upper) == pytest.approx(cable.down, abs=1)
    assert not found


@given(networks())
def test_a_pair_is_limited_at_both_hosts(network: Network) -> None:
    """Rule: each host of a pair has a class of the pair's rate for the other's address, once."""
    rates, found = {}, {}
    for words in (command.words for command in making(network, 1)):
        if words[3:5] == ("class", "add"):
            rate = int(words[words.index("rate") + 1].removesuffix("bit")) / 8
            rates[words[2], words[words.index("classid") + 1]] = rate
        if words[3:5] == ("filter", "add"):
            address, minor = words[words.index("dst") + 1], words[words.index("flowid") + 1]
            found[words[2], address] = rates[words[2], minor]
    pairs = [(*ends, rate) for (a, b), rate in network.pairs.items() for ends in ((a, b), (b, a))]
    wanted = {(network.name(a), network.address(b)): pytest.approx(r, abs=1) for a, b, r in pairs}
    assert found == wanted


@given(networks())
def test_names_and_addresses_are_of_one_host_each(network: Network) -> None:
    """No device is made twice, and no address given twice."""
    words = [command.words for command in making(network, 1)]
    made = [
        (w[2] if w[1] == "-n" else "", w[w.index("add") + 1])
        for w in words
        if "add" in w and w[0] == "ip" and "addr" not in w
    ]
    given_ = [w[w.index("add") + 1] for w in words if "addr" in w]
    assert max(Counter(made).values()) == 1
    assert max(Counter(given_).values()) == 1
    assert all(len(device) <= 15 for _, device in made)  # the kernel's IFNAMSIZ


@given(networks())
def test_an_uplink_has_its_racks_links_over_the_taper(network: Network) -> None:
    """Rule: a rack's uplink is as given, or its hosts' links over the taper; a switch has none."""
    ups = [cable for cable in network.cables() if cable.host is None]
    assert len(ups) == (network.racks if network.racks > 1 else 0)
    for cable in ups:
        hosts = [h for h in range(network.hosts) if network.rack(h) == cable.rack]
        tapered = len(hosts) * network.rate / network.taper
        assert cable.up == cable.down
        assert cable.up == pytest.approx(network.uplinks.get(cable.rack, tapered))


@given(networks(), st.floats(0.01, 100.0))
def test_use_is_bytes_over_what_the_rate_allows(network: Network, seconds: float) -> None:
    """A link that carried its rate all the time was used to 1, on its own way only."""
    before = {cable.device: (7, 9) for cable in network.cables()}
    cables = network.cables()
    received = {c.device: c.up if c.host is not None else c.down for c in cables}
    after = {device: (7 + round(rate * seconds), 9) for device, rate in received.items()}
    for use in used(network, before, after, seconds):
        way, other = (use.up, use.down) if use.cable.host is not None else (use.down, use.up)
        assert way == pytest.approx(1, rel=1e-2)
        assert other == 0


@given(networks())
def test_the_picture_is_xml_and_has_every_link_twice(network: Network) -> None:
    """Both directions of every link are drawn, and the file is well-formed."""
    uses = [Use(cable, 0.5, 1.2) for cable in network.cables()]
    for drawn in (picture(network), picture(network, uses)):
        lines = ElementTree.fromstring(drawn).findall("{http://www.w3.org/2000/svg}line")
        assert len(lines) == 2 * len(network.cables())


@given(st.floats(1e6, 1e11))
def test_rates_are_read_as_they_are_written(bits: float) -> None:
    """What `rate_text` prints to three digits, `rate` reads back."""
    written = format_link_rate(bits / 8).replace("/s", "").replace(" ", "")
    assert text.rate(written) == pytest.approx(bits / 8, rel=6e-3)


@pytest.mark.parametrize(
    ("parse", "wrong"),
    [
        (text.rate, ["", "100", "1Tbit", "1e9bit", "0bit", "9999999999Gbit", "-1Mbit"]),
        (text.racks, ["", "1x4", "4x0", "4x4:taper=0", "4x4:taper=1e9", "4x4:tapir=2", "4x"]),
        (text.slow, ["", "3", "x:1Mbit", "3:", "-1:1Mbit", "3:1Mbit:", "3:1Mbit:up"]),
        (text.uplink, ["", "1", "x:1Mbit", "1:", "1:1Mbit:out"]),
        (text.pair, ["", "1-2", "1:1Mbit", "1-1:1Mbit", "1-2:", "1-2-3:1Mbit"]),
        (text.down, ["", "5", "5@", "5@2", "5@2s+", "@2s", "5@2s+x"]),
        (text.shell, ["", "3", "3:", "3:5", "x:hang", "3:hangs", "hang"]),
        (text.variable, ["", "3:A", "3:=1", "A=1", "3:1A=1", "3:A B=1"]),
        (text.other_file, ["", "3:/etc/hosts", "/etc/hosts=/etc/hosts", "3:/no=/etc/hosts"]),
        (text.crash, ["", "x", "3@", "3@2", "@2s", "3@-1s"]),
        (text.stop, ["", "3", "3@", "3@2", "@2s"]),
        (text.latency, ["", "1", "0us", "11s", "1m"]),
        (text.loss, ["", "1", "0%", "100%", "-1%"]),
        (text.clocks, ["", "3s", "3s:1", "x:1ppm", "3s:99999ppm", "3h:1ppm", "3s:-1ppm"]),
    ],
)
def test_what_is_no_value_is_refused_in_a_sentence(parse, wrong) -> None:  # type: ignore[no-untyped-def]
    """An unknown text of an option is an error that names it, never a default."""
    for one in wrong:
        with pytest.raises(argparse.ArgumentTypeError):
            parse(one)


def test_values_of_options() -> None:
    """The examples of the documentation."""
    assert text.rate("200Mbit") == 25e6
    assert text.racks("4x4:taper=2") == (4, 4, 2.0)
    assert text.slow("3:20Mbit") == (3, 2.5e6, "")
    assert text.slow("3:20Mbit:out") == (3, 2.5e6, "out")
    # A host's name, as the table of hosts and the verdicts of qualify have it.
    assert text.slow("host3:20Mbit") == text.slow("3:20Mbit")
    assert text.pair("host5-host2:20Mbit") == text.pair("2-5:20Mbit")
    assert text.crash("host3@2s") == text.crash("3@2s")
    assert text.uplink("1:20Mbit") == (1, 2.5e6)
    assert text.pair("5-2:20Mbit") == ((2, 5), 2.5e6)
    assert text.down("5@2s") == (5, 2.0, None)
    assert text.down("5@2s+500ms") == (5, 2.0, 0.5)
    assert text.latency("50us") == pytest.approx(5e-5)
    assert text.loss("0.1%") == pytest.approx(1e-3)
    assert text.clocks("3s:100ppm") == (3.0, 100.0)


@given(networks())
def test_the_rate_of_ports_is_told_where_nothing_else_limits(network: Network) -> None:
    """Rule: commands in the cluster know the rate of ports if all are equal, and there are no racks
    or pairs; any other value is refused in one line.
    """  # noqa: D205
    rates = {rate for cable in network.cables() for rate in (cable.up, cable.down)}
    even = len(rates) == 1 and network.racks == 1 and not network.pairs and network.lossless
    assert network.port_rate == (rates.pop() if even else None)
    if network.port_rate is not None:
        assert emulated_port_rate({PORT_RATE: repr(network.port_rate)}) == network.port_rate
    assert emulated_port_rate({}) is None
    for wrong in ("", "0", "nan", "inf", "fast"):
        with pytest.raises(Unsupported, match=PORT_RATE):
            emulated_port_rate({PORT_RATE: wrong})


def test_hosts_clocks_are_off_by_what_was_asked_for() -> None:
    """The first host's clock is true, the last one's off by the most, each by something else."""
    names = [f"host{n}" for n in range(5)]
    told = {VARIABLE: text.clocks("3s:100ppm").of(names, 50.0)}
    found = [skew(told, name) for name in names]
    assert found[0] == (0, 0, 50) and len(set(found)) == 5
    assert found[-1] == pytest.approx((3.0, -1e-4, 50.0))
    assert all(one is not None and abs(one.offset) <= 3 for one in found)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--hosts", "3", "--racks", "2x2", "--", "true"], "--racks 2x2"),
        (["--slow", "4:1Mbit", "--", "true"], "hosts are 0 to 3"),
        (["--slow", "4:1Mbit:in", "--", "true"], "hosts are 0 to 3"),
        (["--shell", "4:hang", "--", "true"], "--shell 4: hosts are 0 to 3"),
        (["--env", "4:A=1", "--", "true"], "--env 4: hosts are 0 to 3"),
        (["--file", "4:/etc/hosts=/etc/passwd", "--", "true"], "--file 4: hosts are 0 to 3"),
        (["--crash", "4", "--", "true"], "--crash 4: hosts are 0 to 3"),
        (["--stop", "4@1s", "--", "true"], "--stop 4: hosts are 0 to 3"),
        (["--pair", "1-4:1Mbit", "--", "true"], "--pair 4: hosts are 0 to 3"),
        (["--pair", "0-1:1Mbit", "--loss", "1%", "--", "true"], "--loss"),
        (["--uplink", "0:1Mbit", "--", "true"], "give --racks"),
        (["--racks", "2x2", "--uplink", "2:1Mbit", "--", "true"], "racks are 0 to 1"),
        (["--down", "4@1s", "--", "true"], "hosts are 0 to 3"),
        (["--hosts", "999", "--", "true"], "999 hosts"),
        (["--hosts", "2"], "no command"),
        (["--hosts", "2", "--no-such", "--", "true"], "--no-such"),
        (
            ["--hosts", "4", "busbar", "step", "--model", "toy"],
            "as in: -- busbar; see",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(argv: list[str], said: str) -> None:
    """A contradiction is one line that names the option."""
    with pytest.raises(Unsupported, match=said):
        ClusterOptions.parse(argv, ClusterOptions.make_parser())


def test_what_follows_the_dashes_is_the_commands_own() -> None:
    """Options of the command are not taken for the cluster's."""
    words = ["--hosts", "2", "--", "x", "--hosts", "3", "--", "y"]
    wanted = ClusterOptions.parse(words, ClusterOptions.make_parser())
    assert wanted.network.hosts == 2
    assert wanted.command == ("x", "--hosts", "3", "--", "y")


def test_counters_of_something_else_are_refused() -> None:
    """What is not the tool's JSON is one of our errors."""
    for other in ("", "[]x", "[1]", '[{"ifname": "a"}]', '{"a": 1}'):
        with pytest.raises(Unavailable):
            counters(other)


def test_the_check_says_when_processors_are_measured() -> None:
    """Where moving all links' bytes takes over half of the cores, the CPU is measured."""
    network = Network(hosts=16, rate=12.5e6)
    assert cpu.judged(network, cpu.CpuCheck(1e9, 2)).endswith("links are what is measured")
    assert "the CPU is measured, no longer" in cpu.judged(network, cpu.CpuCheck(1e8, 2))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_check_counts_what_is_free(others: float, steal: float, waited: float) -> None:
    """Rule: links are what is measured only where they and other work need half of the cores.

    Before the run by what others take then, after it by what they took; what was next to nothing is
    not said.
    """
    network, taken = Network(hosts=16, rate=12.5e6), cpu.OtherWork(others, steal, waited)
    check = cpu.CpuCheck(4e8, 2, taken)  # links ask for a quarter of the cores
    enough = sum(share for share in (others, steal) if share >= 0.05) <= 0.25
    before, after = cpu.judged(network, check), cpu.looked_back(network, check, taken)
    assert ("links are what is measured" in before) == enough
    assert ("times may include waiting for a core" in before) != enough
    for share, word in ((others, "other programs"), (steal, "hypervisor"), (waited, "waited")):
        assert (word in before) == (share >= 0.05)
    assert (after == "") == (max(taken) < 0.05)
    if after:
        assert ("links were what was measured" in after) == enough


def test_what_others_took_is_told_from_two_looks() -> None:
    """Rule: CPU time of the cluster is no other program's; steal is counted apart."""
    before = Look("m", 10.0, 0, 0, None, 0.0, 0.0, 100.0, 5.0, 2, None)
    after = before._replace(at=20.0, busy=116.0, steal=6.0, waited=4.0, mine=2.0)
    assert cpu.OtherWork.between(before, after) == (0.7, 0.05, 0.4)
    assert cpu.OtherWork.between(before, after, mine=15.0) == (0.05, 0.05, 0.0)


def test_only_ports_that_drop_nothing_have_a_long_timer() -> None:
    """Rule: where a port may drop, TCP recovers as fast as it does elsewhere."""
    lossless, small = Network(3, 1e7), Network(3, 1e7, buffer=1 << 16)
    for network, timers in ((lossless, 3), (small, 0)):
        assert sum("rto_min" in c.words for c in making(network, 1)) == timers


def test_what_has_several_launches_starts_its_ranks_itself() -> None:
    """Rule: with --launches the command is told the cluster's ranks, and starts them each time."""
    words = ["python", "-m", "bench.allreduce", "--launches", "3"]
    assert launching(words, 8) == [*words, "--ranks", "8"]
    assert launching(["mpirun", "-n", "2", *words], 8) == ["mpirun", "-n", "2", *words]


@pytest.mark.parametrize("words", [["busbar", "step"], ["python3", "-m", "bench.allreduce"]])
def test_hosts_in_a_command_are_obeyed_or_refused(words: list[str], tmp_path: Path) -> None:
    """Rule: a command of Busbar with hosts, or other ranks, starts its own ranks on known hosts."""
    two, hosts = tmp_path / "two", ["host0", "host1", "host2"]
    two.write_text("host2:1\nhost1\n")
    for own in (["--ranks", "2", "--host", "host0,host2"], ["--ranks=2", f"--hostfile={two}"],
                ["--ranks", "2"], ["--ranks", "2,3"]):  # fmt: skip
        assert launching([*words, *own], 3, hosts) == [*words, *own]
    assert launching([*words, "--ranks", "3"], 3, hosts)[1:3] == ["-n", "3"]
    assert launching(["serve", "--host", "::"], 3, hosts)[3:] == ["serve", "--host", "::"]
    two.write_text("host1\nhost9\n")
    for own in (["--host", "host0,host9"], ["-H", "host9"], ["--hostfile", str(two)]):
        for check in (lambda words: launching(words, 3, hosts), lambda w: check_hosts(w, hosts)):
            with pytest.raises(Unsupported, match="has no host9; it has host0 to host2"):
                check([*words, "--ranks", "2", *own])
    for own, what in (
        (["-Hhost9"], "no host9; it"),
        (["--host", "host0:2"], "no host0:2; it"),
        (["--host="], "names no host; this cluster"),
    ):
        with pytest.raises(Unsupported, match=f"{what} has host0 to host2"):
            launching([*words, *own], 3, hosts)
    assert launching([*words, "-Hhost1"], 3, hosts) == [*words, "-Hhost1"]


def test_qualify_names_hosts_of_the_cluster() -> None:
    """Rule: a host that the cluster lacks is refused before it starts, also for qualify."""
    hosts = ["host0", "host1", "host2"]
    for words in (["busbar", "qualify"], ["python3", "-m", "bench.qualify"]):
        for own in (["--host", "nowhere"], ["--hosts=host0,nowhere"]):
            with pytest.raises(Unsupported, match="has no nowhere; it has host0 to host2"):
                launching([*words, *own], 3, hosts)
        assert launching([*words, "--hosts", "host[0-2]"], 3, hosts)[-1] == "host[0-2]"


@pytest.mark.parametrize("name", ["qualify", "tune", "recipe"])
def test_commands_that_start_ranks_themselves_run_once(name: str) -> None:
    """Rule: qualify and the like imply --once, however they are spelled; benchmarks do not."""
    for words in (["/opt/bin/busbar", name], ["python3", "-m", f"bench.{name}", "--dry-run"]):
        assert launching(words, 8) == words
    for words in (["busbar"], ["busbar", "allreduce", name], ["python3", "-m", "bench.step"]):
        assert not starts_ranks(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["busbar", "allreduce", "--frob", "3"], "unrecognized arguments: --frob 3"),
        ([sys.executable, "-m", "bench.qualify", "--byts", "1"], "did you mean --bytes"),
        (["busbar", "topology", "measure", "--bits", "1"], "unrecognized arguments: --bits 1"),
        (["busbar", "osu_allreduce", "-i", "3"], "no command 'osu_allreduce'; the same here"),
        (["busbar", "allreduce", "--ranks", "4", "-r", "7"], "--root 7: there are only ranks 0"),
    ],
)
def test_options_of_busbars_commands_are_checked_before_hosts_are_made(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a wrong option costs no start of emulated hosts, however the command is spelled."""
    # With another environment active, `busbar` would be the one that is installed there.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))

    def made(*_: object) -> None:
        raise AssertionError("hosts are made")

    monkeypatch.setattr(main, "Cluster", made)
    command = ClusterCommand.parse(["--", *words], ClusterCommand.make_parser())
    with pytest.raises(Unsupported, match=message):
        command.run()
    other = ClusterCommand.parse(["--", "/other/bin/busbar", "frob"], ClusterCommand.make_parser())
    with pytest.raises(AssertionError, match="hosts are made"):  # another Busbar's own options
        other.run()


def test_busbar_is_found_in_this_pythons_environment() -> None:
    """Rule: a command in the cluster is searched for beside this Python at last, after PATH."""
    path = variables({"PATH": "/first:/second"})["PATH"].split(":")
    assert path[1:] == ["/first", "/second", str(Path(sys.prefix, "bin"))]
