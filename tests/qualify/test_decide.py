"""Decisions of a qualification, over simulated clusters with any faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bench.qualify.decide import decide
from bench.qualify.evidence import Evidence
from bench.qualify.model import (
    ALLREDUCE,
    BOTH,
    FORWARD,
    MEMORY,
    Cluster,
    Decision,
    Ending,
    HostReport,
    Launch,
    Limits,
    Observation,
    Stage,
    State,
)
from bench.qualify.pairing import round_of_pairs, rounds
from bench.qualify.speeds import across_racks
from bench.qualify.text import metrics, sentence, table
from bench.qualify.together import predicted
from benchmarks.simulated_cluster import PORT, Campaign, Fault, SimulatedCluster, run_campaign

SLOW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


def names(nhosts: int) -> tuple[str, ...]:
    """The names of hosts."""
    return tuple(f"host{n}" for n in range(nhosts))


def gaussian(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of 1 %."""
    return random.normal(0, 0.01, shape)


@st.composite
def host_faults(draw: st.DrawFn, hosts: Sequence[str], most: int) -> list[Fault]:
    """Faults of hosts and links, at most one of a host."""
    faults = []
    free = list(draw(st.permutations(hosts)))
    for _ in range(draw(st.integers(0, most))):
        state = draw(
            st.sampled_from(
                [
                    State.SLOW,
                    State.UNREACHABLE,
                    State.HANGS,
                    State.CRASHES,
                    State.WRONG,
                    State.DIFFERENT,
                ]
            )
        )
        if state is not State.DIFFERENT and draw(st.integers(0, 4)) == 0:
            pair = (free.pop(), free.pop())
            link = state if state is not State.UNREACHABLE else State.HANGS
            faults.append(Fault("link", pair, link, 0.5))
            continue
        out, into = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        ratio = draw(st.sampled_from([0.5, 0.6, 0.7, 0.8, 0.85]))
        since = draw(st.sampled_from([0, 0, 5])) if state is State.HANGS else 0
        faults.append(Fault("host", (free.pop(),), state, ratio, out, into, since))
    return faults


@st.composite
def clusters(draw: st.DrawFn, most: int = 3) -> tuple[tuple[str, ...], list[Fault]]:
    """Hosts with faults of few of them."""
    nhosts = draw(st.integers(12, 20))
    return names(nhosts), draw(host_faults(names(nhosts), most))


def campaign(
    hosts: tuple[str, ...], faults: Sequence[Fault], limits: Limits | None = None
) -> Campaign:
    """A campaign without noise."""
    return run_campaign(Cluster(hosts), limits or Limits(), SimulatedCluster(hosts, faults))


class _Changed(SimulatedCluster):
    """Launches of which some end otherwise: ``change`` gets each observation, in order."""

    def __init__(
        self, hosts: Sequence[str], change: Callable[[Observation], Observation], *more: Any
    ) -> None:
        super().__init__(hosts, *more)
        self._change = change

    def observe(self, launches: Iterable[Launch]) -> list[Observation]:
        """See `SimulatedCluster.observe`."""
        return [self._change(one) for one in super().observe(launches)]


def accused(decision: Decision) -> set[tuple[str, frozenset[str], State]]:
    """What is called bad, and as what."""
    fine = (State.GOOD, State.CANNOT_TELL)
    return {
        (v.kind, frozenset(v.subject), v.state) for v in decision.verdicts if v.state not in fine
    }


def expected(faults: Sequence[Fault]) -> set[tuple[str, frozenset[str], State]]:
    """What has to be called bad, and as what."""
    return {(f.kind, frozenset(f.hosts), f.state) for f in faults}


@SLOW
@given(clusters())
def test_exactly_the_faults_are_named(case: tuple[tuple[str, ...], list[Fault]]) -> None:
    """Rule: without noise every fault is named with its kind, and nothing else is accused."""
    hosts, faults = case
    decision = campaign(hosts, faults).decision
    assert accused(decision) == expected(faults)
    assert [v.subject[0] for v in decision.verdicts if v.kind == "host"] == sorted(hosts)


@pytest.mark.parametrize("way", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("slow", range(3))
def test_a_slow_host_of_three_is_named(slow: int, way: tuple[bool, bool]) -> None:
    """Rule: that two hosts are slow with the third again and again is not held against the two."""
    hosts = names(3)
    fault = Fault("host", (hosts[slow],), State.SLOW, 0.6, *way)
    for seed in range(4):
        noisy = SimulatedCluster(hosts, [fault], gaussian, seed)
        found = run_campaign(Cluster(hosts), Limits(), noisy).decision
        assert accused(found) == expected([fault])


def states(decision: Decision) -> dict[str, State]:
    """The state of each subject, a link's by both names."""
    return {" ".join(v.subject): v.state for v in decision.verdicts}


@pytest.mark.parametrize("slow", [None, "host0", "host1"])
@pytest.mark.parametrize("lost", [(), ("host2",)])
def test_of_two_hosts_none_is_called_good_without_a_minimum(
    slow: str | None, lost: tuple[str, ...]
) -> None:
    """Rule: a pair with no pair of other hosts to compare it with clears no host.

    That is so with two hosts, and with a third one that fails. No launch is spent on it.
    """
    hosts = names(2 + len(lost))
    faults = [Fault("host", (host,), State.UNREACHABLE) for host in lost]
    faults += [Fault("host", (slow,), State.SLOW, 0.1)] if slow else []
    run = campaign(hosts, faults)
    state = states(run.decision)
    assert (state["host0"], state["host1"]) == (State.CANNOT_TELL, State.CANNOT_TELL)
    assert all(v.ratio is None for v in run.decision.verdicts)
    assert "--minimum" in run.decision.verdicts[0].reason
    works = [o for o in run.observations if o.rates]
    assert len(works) == 1


@pytest.mark.parametrize("measure", [FORWARD, BOTH])
@pytest.mark.parametrize("slow", [None, "host0", "host1"])
def test_of_two_hosts_a_minimum_judges_the_pair(slow: str | None, measure: str) -> None:
    """Rule: above the minimum two hosts are good; below, it is the pair, and neither host."""
    hosts = names(2)
    faults = [Fault("host", (slow,), State.SLOW, 0.1)] if slow else []
    limits = Limits(minimum={measure: 0.5 * PORT})
    decision = campaign(hosts, faults, limits).decision
    state = states(decision)
    if slow is None:
        assert state == {"host0": State.GOOD, "host1": State.GOOD}
        return
    host = State.CANNOT_TELL
    assert state == {"host0": host, "host1": host, "host0 host1": State.SLOW}
    (link,) = (v for v in decision.verdicts if v.kind == "link")
    assert link.ratio == pytest.approx(0.2) and link.of_minimum and len(link.launches) == 3


def test_a_minimum_of_another_measure_judges_no_pair() -> None:
    """Rule: a minimum for memory says nothing of the only pair, which stays without comparison."""
    decision = campaign(names(2), [], Limits(minimum={MEMORY: 1.0})).decision
    assert set(states(decision).values()) == {State.CANNOT_TELL}


@pytest.mark.parametrize("nhosts", [2, 3, 4])
def test_memory_that_no_launch_decides_is_not_called_good(nhosts: int) -> None:
    """Rule: few hosts cannot show which memory rate is usual; one with half of it is not good."""
    hosts = names(nhosts)

    def change(one: Observation) -> Observation:
        """The first host copies memory at half of the others' rate."""
        reports = (
            replace(r, rates={m: v / 2 for m, v in r.rates.items()}) if r.host == hosts[0] else r
            for r in one.reports
        )
        return replace(one, reports=tuple(reports))

    limits = Limits(minimum={BOTH: 0.5 * PORT})
    decision = run_campaign(Cluster(hosts), limits, _Changed(hosts, change)).decision
    assert states(decision) == {
        host: State.CANNOT_TELL if host == hosts[0] else State.GOOD for host in hosts
    }


@SLOW
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_and_observations_says_nothing(
    case: tuple[tuple[str, ...], list[Fault]], random: Random
) -> None:
    """Rule: verdicts do not depend on the order of hosts, nor on that of observations."""
    hosts, faults = case
    first = campaign(hosts, faults)
    shuffled = random.sample(hosts, len(hosts))
    assert campaign(tuple(shuffled), faults) == first
    observations = random.sample(first.observations, len(first.observations))
    assert decide(Cluster(hosts), Limits(), observations) == first.decision


@SLOW
@given(clusters(), st.data())
def test_a_campaign_goes_on_from_any_part_of_its_last_batch(
    case: tuple[tuple[str, ...], list[Fault]], data: st.DataObject
) -> None:
    """Rule: interrupted in any batch, a campaign has the same launches and the same verdicts."""
    hosts, faults = case
    whole = campaign(hosts, faults)
    batch = data.draw(st.integers(0, whole.batches() - 1))
    done = [o for o in whole.observations if o.launch.batch < batch]
    in_flight = [o for o in whole.observations if o.launch.batch == batch]
    some = data.draw(st.lists(st.sampled_from(in_flight), unique_by=lambda o: o.launch.number))
    decision = decide(Cluster(hosts), Limits(), [*done, *some])
    rest = [o.launch for o in in_flight if o not in some]
    if rest:
        assert list(decision.launches) == rest
    complete = [*done, *in_flight]
    again = run_campaign(Cluster(hosts), Limits(), SimulatedCluster(hosts, faults), complete)
    assert again == whole


@SLOW
@given(clusters(), st.integers(1, 400), st.integers(1, 400))
def test_a_greater_budget_never_finds_less(
    case: tuple[tuple[str, ...], list[Fault]], one: int, other: int
) -> None:
    """Rule: the faults that are named with few launches are named with more, and none is wrong."""
    hosts, faults = case
    few, many = (
        campaign(hosts, faults, Limits(launches=n)) for n in (min(one, other), max(one, other))
    )
    assert len(few.observations) <= min(one, other)
    assert accused(few.decision) <= accused(many.decision) <= expected(faults)


@SLOW
@given(clusters(most=5), st.integers(1, 1000))
def test_launches_are_disjoint_and_numbered(
    case: tuple[tuple[str, ...], list[Fault]], seed: int
) -> None:
    """Rule: no host is in two launches of a batch, and numbers and batches count on."""
    hosts, faults = case
    observations = campaign(hosts, faults, Limits(seed=seed)).observations
    assert [o.launch.number for o in observations] == list(range(len(observations)))
    batches = [o.launch.batch for o in observations]
    assert batches == sorted(batches)
    assert set(batches) == set(range(max(batches) + 1))
    for batch in set(batches):
        used = [h for o in observations if o.launch.batch == batch for h in o.launch.hosts]
        assert len(used) == len(set(used))
        assert set(used) <= set(hosts)


@SLOW
@given(clusters())
def test_nothing_is_bad_on_one_launch(case: tuple[tuple[str, ...], list[Fault]]) -> None:
    """Rule: each accusation has two launches at least, which are launches of its subject."""
    hosts, faults = case
    whole = campaign(hosts, faults)
    launches = {o.launch.number: o.launch for o in whole.observations}
    for verdict in whole.decision.verdicts:
        if verdict.state in (State.GOOD, State.CANNOT_TELL):
            continue
        least = 1 if verdict.state is State.DIFFERENT else 2
        assert len(verdict.launches) >= least, verdict
        for number in verdict.launches:
            assert set(verdict.subject) & set(launches[number].hosts)


@given(st.integers(2, 41), st.integers(0, 5))
def test_rounds_have_every_pair_once(nhosts: int, seed: int) -> None:
    """Rule: the rounds have every pair once, and a round has no host twice."""
    seen = set()
    for number in range(rounds(nhosts)):
        pairs = round_of_pairs(nhosts, number, seed)
        assert len({h for pair in pairs for h in pair}) == 2 * len(pairs) == nhosts - nhosts % 2
        seen |= {frozenset(pair) for pair in pairs}
    assert len(seen) == nhosts * (nhosts - 1) // 2


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("hosts", [16, 64])
def test_an_uplink_is_told_from_its_hosts(hosts: int, given: bool) -> None:
    """Rule: a slow uplink is named and its hosts are not, whether racks are known or found."""
    racks = {name: f"rack{n // (hosts // 4)}" for n, name in enumerate(names(hosts))}
    faults = [Fault("uplink", ("host5",), State.SLOW, 1 / 3)]
    simulated = SimulatedCluster(names(hosts), faults, gaussian, racks=racks)
    cluster = Cluster(names(hosts), racks if given else {})
    found = run_campaign(cluster, Limits(), simulated).decision
    rack = frozenset(h for h in racks if racks[h] == racks["host5"])
    assert accused(found) == {("uplink", rack, State.SLOW)}


def test_between_two_racks_the_rate_across_is_said() -> None:
    """Rule: two racks whose pairs across are all slow are told by the rate across, and not else."""
    hosts = names(6)
    racks = {name: f"rack{n // 3}" for n, name in enumerate(hosts)}
    for faults, low, high in (
        ([Fault("uplink", (hosts[0],), State.SLOW, 0.3)], 0.2, 0.4),
        ([], 1, 1),
    ):
        cluster = Cluster(hosts, racks)
        simulated = SimulatedCluster(hosts, faults, gaussian, racks=racks)
        run = run_campaign(cluster, Limits(), simulated)
        across = across_racks(Evidence(cluster, Limits(), run.observations))
        assert low <= (across or 1) <= high
        said = sentence(cluster, [], across)
        assert ("a pair across racks has x0." in said) == bool(faults)


@SLOW
@given(st.sampled_from([4, 8]), st.sampled_from([0.5, 0.7, 0.8]), st.integers(0, 63))
def test_hosts_behind_a_slow_uplink_are_judged(per_rack: int, ratio: float, slow: int) -> None:
    """Rule: where racks are given, a slow uplink hides neither its slow hosts nor its good ones."""
    hosts = names(64)
    racks = {name: f"rack{n // per_rack}" for n, name in enumerate(hosts)}
    near = next(h for h in hosts if racks[h] == racks[hosts[slow]] and h != hosts[slow])
    faults = [
        Fault("uplink", (near,), State.SLOW, 1 / 3),
        Fault("host", (hosts[slow],), State.SLOW, ratio),
    ]
    simulated = SimulatedCluster(hosts, faults, gaussian, racks=racks)
    found = run_campaign(Cluster(hosts, racks), Limits(), simulated).decision
    rack = frozenset(h for h in hosts if racks[h] == racks[near])
    assert accused(found) == {
        ("uplink", rack, State.SLOW),
        ("host", frozenset([hosts[slow]]), State.SLOW),
    }
    assert all(verdict.state is not State.CANNOT_TELL for verdict in found.verdicts)


@SLOW
@given(st.integers(4, 12), st.integers(0, 1000), st.sampled_from([0.5, 0.7]))
def test_both_ways_at_once_may_have_levels_of_their_own(
    nhosts: int, seed: int, ratio: float
) -> None:
    """Rule: a slow host is found by each direction, and nobody is accused of what all pairs do."""
    hosts = names(nhosts)
    fault = Fault("host", (hosts[seed % nhosts],), State.SLOW, ratio)

    def change(one: Observation) -> Observation:
        """Messages both ways at once go at two thirds of their rate in two launches of three."""
        share = np.random.default_rng([seed, one.launch.number]).choice([1, 0.66, 0.67])
        both = {what: tuple(share * np.array(one.rates[what])) for what in {BOTH} & {*one.rates}}
        return replace(one, rates={**one.rates, **both})

    simulated = _Changed(hosts, change, [fault], gaussian, seed)
    found = run_campaign(Cluster(hosts), Limits(), simulated).decision
    assert accused(found) == expected([fault])


@SLOW
@given(st.integers(9, 16), st.integers(0, 1000), st.sampled_from([0.4, 0.7]))
def test_a_host_that_answers_late_keeps_no_suspect_waiting(
    nhosts: int, seed: int, ratio: float
) -> None:
    """Rule: after the rounds a late host is launched only where it is a suspect's partner.

    It is not accused for that, and a slow link of others is named.
    """
    hosts = names(nhosts)
    slow = hosts[2:4]
    fault = Fault("link", slow, State.SLOW, ratio)

    def change(one: Observation) -> Observation:
        """The first host answers after 7 s, as behind a slow remote shell, the others after 4 s."""
        return replace(one, seconds=7.0 if hosts[0] in one.launch.hosts else 4.0)

    found = run_campaign(Cluster(hosts), Limits(seed=seed), _Changed(hosts, change, [fault]))
    assert accused(found.decision) == expected([fault])
    confirming = [o.launch for o in found.observations if o.launch.stage is Stage.CONFIRM]
    assert confirming
    beside = [one for one in confirming if not {*slow} & {*one.hosts}]
    assert all(hosts[0] not in one.hosts for one in beside)


@SLOW
@given(st.integers(12, 16), st.integers(0, 1000), st.integers(1, 3))
def test_a_slow_link_is_found_whatever_its_first_launch_was_for(
    nhosts: int, seed: int, since: int
) -> None:
    """Rule: a pair that ran first beside a suspect, and so in no round, is judged as all others."""
    hosts = names(nhosts)
    crash = Fault("host", hosts[:1], State.CRASHES, since=since)

    def run(*faults: Fault) -> Campaign:
        return run_campaign(Cluster(hosts), Limits(seed=seed), SimulatedCluster(hosts, faults))

    first: dict[frozenset[str], Launch] = {}
    for one in run(crash).observations:
        first.setdefault(frozenset(one.launch.hosts), one.launch)
    confirming = [one for one in first.values() if one.stage is Stage.CONFIRM]
    pairs = [one.hosts for one in confirming if hosts[0] not in one.hosts]
    assume(pairs)
    link = Fault("link", pairs[0], State.SLOW, 0.6)
    assert accused(run(crash, link).decision) == expected([crash, link])


@SLOW
@given(st.sets(st.integers(0, 15), min_size=3, max_size=3), st.sampled_from([0.3, 0.6]))
def test_interference_that_no_pair_shows_is_narrowed_to_a_set(few: set[int], ratio: float) -> None:
    """Rule: where only many hosts together are slow, halves are launched: the set that is named has
    all that interfere, and nothing is named where both halves of all hosts are fast.
    """  # noqa: D205
    hosts = names(16)
    ordered = sorted(hosts)
    group = frozenset(ordered[n] for n in few)
    found = campaign(hosts, [Fault("group", tuple(group), State.SLOW, ratio)]).decision
    halves = [frozenset(ordered[:8]), frozenset(ordered[8:])]
    half = next((one for one in halves if group <= one), None)
    accusations = accused(found)
    assert len(accusations) == (half is not None)
    for kind, named, state in accusations:
        assert (kind, state) == ("group", State.SLOW)
        assert half is not None
        assert group <= named <= half
    assert all(v.state is State.GOOD for v in found.verdicts if v.kind == "host")


def _ended(one: Observation, ending: Ending) -> Observation:
    """The same launch, of which every host ended so."""
    return Observation(one.launch, tuple(HostReport(h, ending) for h in one.launch.hosts))


@pytest.mark.parametrize("nhosts", [3, 4, 5, 6, 8, 12])
@pytest.mark.parametrize("only_all", [True, False])
def test_hosts_that_fail_only_together_are_no_good_cluster(nhosts: int, only_all: bool) -> None:
    """Rule: launches of all hosts that fail are a verdict on the group, with their state."""
    hosts = names(nhosts)
    least = nhosts if only_all else 3

    def change(one: Observation) -> Observation:
        return _ended(one, Ending.HUNG) if len(one.launch.hosts) >= least else one

    found = run_campaign(Cluster(hosts), Limits(), _Changed(hosts, change)).decision
    groups = {(v.kind, v.state) for v in found.verdicts if v.kind != "host"}
    assert groups == {("group", State.HANGS)}
    assert all(v.state is State.GOOD for v in found.verdicts if v.kind == "host")


@SLOW
@given(st.integers(7, 16), st.sampled_from([1e-4, 5e-4]), st.sampled_from([1, 8]))
def test_latency_is_held_against_no_group(nhosts: int, step_s: float, ranks: int) -> None:
    """Rule: where each step of a ring takes its latency, a larger half is not called slow."""
    hosts, nbytes = names(nhosts), 1 << 20

    def change(one: Observation) -> Observation:
        n = len(one.launch.hosts)
        if n < 3:
            return one
        seconds = nbytes / predicted(PORT, n) + 2 * (n * ranks - 1) * step_s
        return replace(one, rates={ALLREDUCE: (nbytes / seconds,)})

    found = run_campaign(Cluster(hosts), Limits(), _Changed(hosts, change)).decision
    assert not accused(found)


@SLOW
@given(st.integers(6, 16), st.integers(0, 10_000), st.sampled_from([0.2, 0.35]))
def test_a_host_that_fails_now_and_then_is_not_called_good(
    nhosts: int, seed: int, share: float
) -> None:
    """Rule: a host that failed with several partners is good only if its links are not."""
    hosts = names(nhosts)
    failed: set[str] = set()

    def change(one: Observation) -> Observation:
        random = np.random.default_rng([seed, one.launch.number])
        others = [host for host in one.launch.hosts if host != hosts[0]]
        if len(others) == 1 != len(one.launch.hosts) and random.random() < share:
            failed.update(others)
            return _ended(one, Ending.CRASHED)
        return one

    found = run_campaign(Cluster(hosts), Limits(seed=seed), _Changed(hosts, change)).decision
    states = {v.subject[0]: v.state for v in found.verdicts if v.kind == "host"}
    links = [v for v in found.verdicts if v.kind == "link" and hosts[0] in v.subject]
    assert len(failed) < 2 or links or states[hosts[0]] is not State.GOOD
    assert all(
        state in (State.GOOD, State.CANNOT_TELL) for h, state in states.items() if h != hosts[0]
    )


@pytest.mark.parametrize("ending", [Ending.HUNG, Ending.CRASHED])
def test_a_good_host_that_failed_once_is_told(ending: Ending) -> None:
    """Rule: a host that failed in one launch and worked in all others is good, and told.

    Its verdict has the launch, table and sentence have it with the host's name, and a metric has
    the number. A host that the failure does not implicate, and one of a bad partner, has none.
    """
    hosts = names(5)
    once: list[int] = []

    def change(one: Observation) -> Observation:
        if len(one.launch.hosts) != 2:
            return one
        if hosts[4] in one.launch.hosts:  # fails always
            return _ended(one, Ending.CRASHED)
        if hosts[3] in one.launch.hosts and not once:
            once.append(one.launch.number)
            reports = [
                replace(r, ending=ending if r.host == hosts[3] else Ending.STOPPED)
                for r in one.reports
            ]
            return replace(one, reports=tuple(reports), rates={})
        return one

    found = run_campaign(Cluster(hosts), Limits(), _Changed(hosts, change)).decision.verdicts
    of_hosts = {v.subject[0]: v for v in found if v.kind == "host"}
    assert [of_hosts[name].failed for name in hosts] == [(), (), (), (once[0],), ()]
    assert [of_hosts[name].state for name in hosts] == [State.GOOD] * 4 + [State.CRASHES]
    told = sentence(Cluster(hosts), found)
    what = "hangs in stage pairs, in 1 of" if ending is Ending.HUNG else "crashes in 1 of"
    assert told.startswith("4 of 5 hosts are good; ") and f"{hosts[3]}, though good, {what}" in told
    columns = {head: cells for head, _, cells in table(Cluster(hosts), found)}
    row = columns["subject"].index(hosts[3])
    assert columns["verdict"][row] == "good" and columns["launches"][row] == str(once[0])
    assert "3 hosts" in columns["subject"]
    name = "busbar_qualify_host_failed_launches"
    lines = metrics(found, 1.0, 2.0).splitlines()
    assert [line[-1] for line in lines if line.startswith(name)] == ["0", "0", "0", "1"]


def test_one_failure_of_two_hosts_is_tried_again() -> None:
    """Rule: where no other partner is left, hosts that failed are launched with each other."""
    hosts = names(2)

    def change(one: Observation) -> Observation:
        first = len(one.launch.hosts) == 2 and one.launch.number == 2
        return _ended(one, Ending.CRASHED) if first else one

    limits = Limits(minimum={FORWARD: 0.5 * PORT})
    decision = run_campaign(Cluster(hosts), limits, _Changed(hosts, change)).decision
    assert set(states(decision).values()) == {State.GOOD}


@pytest.mark.parametrize("nhosts", [2, 3, 5, 16])
def test_where_all_pairs_fail_the_campaign_ends(nhosts: int) -> None:
    """Rule: if every pair fails, as with a firewall, the launches are few, and no host is bad."""
    hosts = names(nhosts)

    def change(one: Observation) -> Observation:
        return _ended(one, Ending.HUNG) if len(one.launch.hosts) > 1 else one

    found = run_campaign(Cluster(hosts), Limits(), _Changed(hosts, change))
    assert not accused(found.decision) and found.batches() < 12
    assert all(v.state is State.CANNOT_TELL for v in found.decision.verdicts if v.kind == "host")


@pytest.mark.parametrize(
    ("cpus", "states"),
    [
        ("ai", {State.CANNOT_TELL}),
        ("abcd", {State.CANNOT_TELL}),
        ("aabc", {State.CANNOT_TELL}),
        ("aaaab", {State.GOOD, State.DIFFERENT}),
        ("aaabbbc", {State.GOOD, State.DIFFERENT}),
        ("aabb", {State.GOOD}),
    ],
)
def test_hardware_is_different_from_that_of_most_hosts(cpus: str, states: set[State]) -> None:
    """Rule: a host is different only if most hosts have hardware that a second host has too."""
    hosts = names(len(cpus))
    of = dict(zip(sorted(hosts), cpus, strict=True))

    def change(one: Observation) -> Observation:
        reports = (replace(r, facts={**r.facts, "cpu": of[r.host]}) for r in one.reports)
        return replace(one, reports=tuple(reports))

    found = run_campaign(Cluster(hosts), Limits(), _Changed(hosts, change)).decision
    assert {v.state for v in found.verdicts} == states


@pytest.mark.parametrize("state", [State.SLOW, State.CRASHES])
@pytest.mark.parametrize("most", range(18, 40))
def test_a_link_under_suspicion_at_the_last_launch_is_told(state: State, most: int) -> None:
    """Rule: where --launches ends the campaign, a link that was slow or failed is not all good."""
    hosts = names(8)
    fault = Fault("link", hosts[:2], state, 0.5)
    limits = Limits(launches=most)
    found = run_campaign(Cluster(hosts), limits, SimulatedCluster(hosts, [fault]))
    shown = any({*hosts[:2]} == {*one.launch.hosts} for one in found.observations)
    assert not shown or any(v.state is not State.GOOD for v in found.decision.verdicts)
