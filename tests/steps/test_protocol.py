"""The protocols of parameter servers: who waits, who is sent what, expected times; reports."""

from __future__ import annotations

from collections import Counter, deque
from itertools import product
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.steps.compute import Compute, Exponential, Replay
from bench.steps.server.loops import ServerLog
from bench.steps.server.protocol import PROTOCOLS, Core, UpdateProtocol, update_protocol
from bench.steps.server.report import (
    RECEIVED,
    TRAVEL,
    RoundCosts,
    ServerReport,
    ServiceTimes,
    SimulatedRun,
    _reasons,
    _sum_of_parts,
    attribute_time,
    build_report,
    equal_blocks,
    histogram,
    learners_figures,
    mean_staleness,
    per_update,
    port_seconds,
    sync_over_async,
)
from busbar.errors import RankFailure, Unsupported
from busbar.statistics import mean_interval
from reports.statistics.uncertain import Uncertain

LAWS = (
    Exponential("exp", 0.03, seed=5),
    Exponential("shifted", 0.02, 0.01, seed=5),
    Exponential("fixed", 0.0, 0.03),
    Replay("replayed", np.random.default_rng(5).choice([0.01, 0.02, 0.02, 0.05], (24_000, 4))),
)


def _every(learners: int) -> list[UpdateProtocol]:
    return [
        update_protocol(name.replace("K", str(k)), learners)
        for name in PROTOCOLS
        for k in range(1, learners + 1)
        if ":K" in name or k == 1
    ]


@given(
    st.integers(1, 5).flatmap(
        lambda p: st.tuples(st.just(p), st.integers(1, p), st.lists(st.integers(0, 4), max_size=60))
    ),
    st.sampled_from(PROTOCOLS),
)
def test_an_update_has_its_gradients_and_nobody_is_forgotten(
    run: tuple[int, int, list[int]], name: str
) -> None:
    """Rule: an update takes K gradients; in a synchronous protocol none that is stale.

    Learners that wait are sent weights; those that compute only if an update cancels them.
    """
    learners, k, order = run
    protocol = update_protocol(name.replace("K", str(k)), learners)
    core = Core(protocol, range(learners))
    working = dict.fromkeys(core.start().send, 0)
    taken = 0
    for turn in order:
        if not working:
            break
        learner = sorted(working)[turn % len(working)]
        version = working[learner] if protocol.goes_on else working.pop(learner)
        done = core.gradient(learner, version)
        assert done.staleness == core.version - bool(done.update) - version
        assert done.staleness == 0 or not protocol.cancels
        taken += 1
        assert done.update in (0, protocol.needed)
        assert bool(done.update) == (taken % protocol.needed == 0)
        if protocol.cancels:
            assert set(done.send) == (set(range(learners)) if done.update else set())
        else:
            assert not set(done.send) & set(working)
        working |= dict.fromkeys(done.send, core.version)
    assert working  # somebody always works
    assert core.version == taken // protocol.needed


def test_what_was_overtaken_is_thrown_away_where_it_is_cancelled() -> None:
    """Rule: a gradient that was sent before its learner was cancelled is dropped."""
    core = Core(update_protocol("k-sync:1", 2), range(2))
    assert core.gradient(0, 0) == (0, 1, (0, 1))
    assert core.gradient(1, 0) == (None, 0, ())
    assert core.gradient(1, 1) == (0, 1, (0, 1))


@pytest.mark.parametrize("name", ["sync", "k-sync:1", "k-batch-sync:2"])
def test_a_synchronous_protocol_names_whom_it_lost(name: str) -> None:
    """Rule: a synchronous run ends with the name of the learner that was lost."""
    core = Core(update_protocol(name, 3), range(3))
    with pytest.raises(RankFailure, match=f"learner 1 was lost; {name} cannot go on without it"):
        core.leave(1)


def test_those_who_are_left_wait_for_nobody_who_is_gone() -> None:
    """Rule: an asynchronous run continues with the remaining learners, and with a new one."""
    core = Core(update_protocol("k-async:3", 3), range(3))
    core.gradient(0, 0)
    core.gradient(2, 0)
    assert core.leave(1) == (None, 2, (0, 2))
    assert core.join(3).send == (3,)
    assert core.gradient(3, 1).staleness == 0
    core.leave(0)
    assert core.gradient(2, 1).update == 2
    core.leave(3)
    with pytest.raises(RankFailure, match="the last"):
        core.leave(2)


def _deadlocks(protocol: UpdateProtocol, servers: int, limit: int) -> bool:
    """Whether any order in which messages may arrive leaves every learner waiting."""
    learners = range(protocol.learners)
    # A state: of every server whose gradients wait, of every learner which are on their way.
    none: tuple[int, ...] = ()
    first = ((none,) * servers, tuple(frozenset(range(servers)) for _ in learners))
    seen, front = {first}, deque([first])
    while front:
        waiting, moving = front.popleft()
        if not any(moving):
            return True
        for learner, server in product(learners, range(servers)):
            if server not in moving[learner]:
                continue
            held = (*waiting[server], learner)
            full = len(held) == protocol.needed
            after = list(waiting)
            after[server] = () if full else tuple(sorted(held))
            ways = [set(way) for way in moving]
            ways[learner].discard(server)
            for other in learners:
                if not ways[other] and not any(other in one for one in after):
                    ways[other] = set(range(servers))  # it has all its weights: the next gradient
            state = (tuple(after), tuple(map(frozenset, ways)))
            if state not in seen:
                assert len(seen) < limit
                seen.add(state)
                front.append(state)
    return False


@pytest.mark.parametrize(
    ("learners", "k", "servers"), [(3, 2, 2), (3, 2, 3), (2, 2, 3), (4, 2, 3), (3, 1, 3), (4, 3, 2)]
)
def test_what_may_deadlock_is_refused(learners: int, k: int, servers: int) -> None:
    """Rule: k-async over several servers is refused if it can deadlock."""
    protocol = update_protocol(f"k-async:{k}", learners)
    found = _deadlocks(protocol, servers, 300_000)
    # The condition is necessary; 4 learners, K = 3 and 2 servers meet it and never stop.
    never = (learners, k, servers) == (4, 3, 2)
    assert protocol.may_deadlock(learners, servers) == (found or never)
    if found:
        with pytest.raises(Unsupported, match="deadlock"):
            update_protocol(f"k-async:{k}", learners, servers)


@given(st.integers(1, 12).flatmap(lambda p: st.tuples(st.integers(1, p), st.just(p))))
def test_order_statistics_are_the_integrals(kp: tuple[int, int]) -> None:
    """Rule: E[X_{k:p}] is the mean of X's quantiles over the k-th of p uniform values (a Beta)."""
    k, p = kp
    beta = stats.beta(k, p - k + 1)
    q = (np.arange(4000) + 0.5) / 4000
    exponential = float((-np.log1p(-beta.ppf(q))).mean())
    assert Exponential("", 2.0, 1.0).smallest(k, p) == pytest.approx(1 + 2 * exponential, rel=2e-3)
    times = np.array([[7.0, 2.0], [1.0, 2.0]])
    steps = np.diff(beta.cdf(np.arange(5) / 4))
    expected = float(steps @ np.sort(times, axis=None))
    assert Replay("", times).smallest(k, p) == pytest.approx(expected)


def test_closed_forms() -> None:
    """Rule: for exponential times a synchronous update takes P·H_P asynchronous ones."""
    law, aged = Exponential("", 1.0), Exponential("", 1.0, 0.1)
    assert sync_over_async(8, law) == pytest.approx(21.74, abs=0.01)
    assert sync_over_async(16, law) == pytest.approx(54.09, abs=0.01)
    assert sync_over_async(5, Exponential("", 0.0, 1.0)) == 5
    assert per_update(update_protocol("k-batch-sync:4", 8), law) == (0.5, False)
    assert per_update(update_protocol("k-batch-sync:4", 8), aged) is None
    found = per_update(update_protocol("k-async:4", 8), aged)
    assert found is not None and found.bound
    assert found.seconds == pytest.approx(0.1 + sum(1 / n for n in (5, 6, 7, 8)))
    assert mean_staleness(update_protocol("async", 16)) == 15
    assert mean_staleness(update_protocol("k-batch-async:4", 16)) == 15 / 4
    assert mean_staleness(update_protocol("k-async:4", 16)) == 3
    assert mean_staleness(update_protocol("k-sync:4", 16)) == 0


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.label)
@pytest.mark.parametrize("protocol", _every(4), ids=lambda protocol: protocol.name)
def test_the_core_takes_as_long_as_the_formulas_say(protocol: UpdateProtocol, law: Compute) -> None:
    """Rule: with drawn times every protocol takes its expected time and has its staleness."""
    updates = 6000 // protocol.needed
    played = SimulatedRun(protocol, law.draw, updates)
    expected = per_update(protocol, law)
    if expected is not None:
        ratio = played.per_update(updates // 10) / expected.seconds
        assert ratio < 1.06
        assert expected.bound or ratio > 0.94
    assert _mean(played.staleness) == pytest.approx(mean_staleness(protocol), rel=0.05)
    assert sum(played.staleness.values()) == updates * protocol.needed
    assert played.busy == 0


def test_a_server_that_takes_its_time() -> None:
    """Rule: a server that is the bottleneck sets the pace; a fast server slows a run little."""
    protocol, law = update_protocol("async", 8), Exponential("", 0.0, 0.010)
    costs = ServiceTimes(gradient=0.001, update=0.001, weights=0.002)
    busy = SimulatedRun(protocol, law.draw, 2000, costs)
    assert busy.per_update(200) == pytest.approx(0.004, rel=0.01)
    assert busy.busy / busy.updates[-1] == pytest.approx(1, abs=0.02)
    idle = SimulatedRun(protocol, law.draw, 2000, ServiceTimes(gradient=1e-6))
    assert idle.per_update(200) == pytest.approx(0.010 / 8, rel=0.01)
    late = SimulatedRun(protocol, law.draw, 2000, ServiceTimes(round=0.002))
    assert late.per_update(200) == pytest.approx(0.012 / 8, rel=0.01)


def test_a_server_that_cannot_keep_up_ends_the_simulation() -> None:
    """Rule: if learners outrun the server, every gradient is stale, and the simulation ends."""
    protocol, law = update_protocol("k-batch-sync:3", 3), Exponential("", 0.0, 0.001)
    outrun = SimulatedRun(protocol, law.draw, 200, ServiceTimes(gradient=0.002))
    assert outrun.endless and outrun.per_update() == inf
    kept_up = SimulatedRun(protocol, law.draw, 200, ServiceTimes(gradient=0.0001))
    assert not kept_up.endless and len(kept_up.updates) == 200


def _mean(counts: Counter[int]) -> float:
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


@given(st.dictionaries(st.integers(0, 100), st.integers(1, 9), min_size=1))
def test_a_histogram_holds_everything(counts: dict[int, int]) -> None:
    """Rule: staleness below 8 is exact, above it classes double, and the parts are the whole."""
    found = histogram({str(value): n for value, n in sorted(counts.items())})
    parts = [float(word.split(" ")[1]) for word in found.split(", ")]
    assert sum(parts) == pytest.approx(100, abs=0.5 * len(parts))
    assert histogram({"0": 1, "2": 1, "7": 2}) == "0: 25 %, 2: 25 %, 7: 50 %"
    assert histogram({"7": 1, "8": 1, "15": 1, "16": 1}) == "7: 25 %, 8-15: 50 %, 16-31: 25 %"


def test_a_mean_has_an_interval() -> None:
    """Rule: the interval of a mean is computed from blocks, so correlated times widen it."""
    random = np.random.default_rng(1)
    apart = random.exponential(1, 4000)
    low, high = mean_interval(equal_blocks(apart).mean(axis=1)) or (0, 0)
    assert low < 1 < high and high - low < 0.12
    together = np.repeat(random.exponential(1, 40), 100)
    wide = mean_interval(equal_blocks(together).mean(axis=1)) or (0, 0)
    assert wide[1] - wide[0] > 3 * (high - low)


@given(st.integers(1, 1000))
def test_blocks_are_equal(n: int) -> None:
    """Rule: blocks have equally many updates, so their mean is that of all; few are left out.

    Fewer than 40 updates are one block, which has no interval.
    """
    blocks = equal_blocks(np.arange(float(n)))
    assert blocks[-1, -1] == n - 1 and np.all(np.diff(blocks.ravel()) == 1)
    assert len(blocks) == 1 if n < 40 else 20 <= len(blocks) < 40
    assert 0.95 * n <= blocks.size <= n
    assert n >= 40 or mean_interval(blocks.mean(axis=1)) is None


LAW = Exponential("exp:20", 0.020, seed=3)


def _said(
    costs: ServiceTimes,
    compute: Exponential = LAW,
    updates: int = 2000,
    name: str = "async",
    hosts: int = 1,
    port_s: float | None = None,
) -> ServerReport:
    """The report of a server that took so long for everything, with 1 MiB in and 2 MiB out."""
    protocol = update_protocol(name, 8)
    played = SimulatedRun(protocol, compute.draw, updates, costs)
    one: dict[str, Any] = {"pushed": updates, "answers": updates, "cancelled": 0}
    one |= dict.fromkeys(("late", "travel", "unnoticed", "pushing"), 0)
    one |= {"rounds": [0.16] * 20, "exposed": [0.016] * 20, "drawn": [0.019, 0.021] * 10}
    log = ServerLog(
        updates=played.updates,
        staleness=played.staleness,
        waits=[0.0] * updates,
        wall=played.updates[-1],
        idle=played.updates[-1] - played.busy,
        bytes_in=updates << 20,
        bytes_out=updates << 21,
        receive_s=costs.receive * updates,
        gradient_s=costs.gradient * updates,
        update_s=costs.update * updates,
        answer_s=costs.weights * updates,
        answers=updates,
        batches=updates,
        workers=[one],
    )
    return build_report(protocol, [log], compute, compute.draw, 8, hosts=hosts, port_s=port_s)


def test_learners_that_differ_have_no_formula() -> None:
    """Rule: formulas need one law for all learners; otherwise the drawn times are simulated."""
    slow = _said(ServiceTimes(), Exponential("exp:20", 0.020, seed=3, slow={3: 2.0}), 200)
    assert slow.model == "simulated" and slow.facts["formula_s"] is None
    assert slow.predicted == slow.facts["drawn_s"] and slow.facts["sync_over_async"] is None
    none = _said(ServiceTimes(gradient=1e-3), Exponential("none", 0.0), 200)
    assert none.model == "" and none.predicted is None is none.facts["formula_s"]


@pytest.mark.parametrize(
    ("name", "vectors", "turns"),
    [
        ("sync", 16, True),
        ("k-sync:2", 10, True),
        ("k-async:8", 16, True),
        ("async", 1, False),
        ("k-async:2", 2, False),
        ("k-batch-async:3", 3, False),
    ],
)
def test_a_port_of_known_rate_is_predicted(name: str, vectors: int, turns: bool) -> None:
    """Rule: the bytes of docs/parameter-servers.md through the port are part of the prediction:
    after the computing where learners wait for each other, else the greater of both; a learner that
    waits for weights has the time of its own two messages, too.
    """  # noqa: D205
    for rate in (25e6, 2e9):
        port_s = port_seconds(update_protocol(name, 8), 1e6, rate)
        assert port_s == pytest.approx(vectors * 1e6 / rate)
        plain, ported = (
            _said(ServiceTimes(), updates=400, name=name, port_s=s) for s in (None, port_s)
        )
        assert plain.predicted is not None and ported.predicted is not None
        own = plain.predicted
        # Of 8/K updates each learner sends one gradient, and waits for weights.
        together = max(own + 2 * port_s / 8, port_s)
        assert ported.predicted == pytest.approx(own + port_s if turns else together)
        assert ported.model == f"{plain.model}+port"
        assert ported.lines[0].startswith("    predicted") and "port" not in plain.lines[0]
        # Beside a ratio over a prediction with the port, these ratios say that they are without it.
        (ratios,) = (line for line in ported.lines if "measured over" in line)
        assert ratios.startswith("    measured over computing alone: the formula")
        assert ratios in plain.lines


def test_a_bound_is_no_prediction() -> None:
    """Rule: if the formula is a bound, the prediction is the simulation of the drawn times."""
    law = Exponential("fixed:10+exp:5", 0.005, 0.010, seed=3)
    said = _said(ServiceTimes(), law, 400, "k-async:4")
    assert said.facts["formula_is_bound"] and said.model == "simulated"
    assert said.predicted == said.facts["drawn_s"] < 0.9 * said.facts["formula_s"]
    assert fmean(said.times) == pytest.approx(said.predicted)
    assert "the formula's bound" in said.lines[0]


def test_without_compute_costs_are_not_told_apart() -> None:
    """Rule: without computing there is no simulation, and no ratio to it is shown."""
    said = _said(ServiceTimes(gradient=1e-3), Exponential("none", 0.0), 200)
    assert said.facts["with_server_s"] is None
    assert not any("measured over" in line or "the server's" in line for line in said.lines)


def test_stragglers_are_no_base() -> None:
    """Rule: the time of one learner alone leaves out stragglers."""
    learned = [
        {"number": n, "pushed": 1, "late": 0.0, "drawn": [0.02 * f] * 20, "exposed": []}
        for n, f in enumerate((1, 1, 5, 1))
    ]
    assert learners_figures(learned, 0.01, {2})["one_rank_s"] == pytest.approx(0.02)
    assert Exponential("fixed:1", 0.0, 1e-3, slow={3: 2.0}).fastest(range(1, 5)) == [1, 2, 4]
    assert Exponential("fixed:1", 0.0, 1e-3, slow={0: 2.0, 1: 3.0}).fastest(range(2)) == [0]


def test_a_formula_that_was_missed_has_its_reason() -> None:
    """Rule: if a slow server explains the missed formula, a line says so."""
    fast = _said(ServiceTimes())
    assert fast.model == "formula" and fast.predicted == 0.020 / 8
    assert fmean(fast.times) == pytest.approx(fast.facts["drawn_s"])
    assert not any("% from the predicted" in line for line in fast.lines)
    # A tenth of learners' rounds is exposed, so a tenth of an update; one learner has its interval.
    assert fast.facts["exposed_s"] == pytest.approx(fmean(fast.times) / 10)
    assert fast.facts["exposed_interval_s"] == pytest.approx((fast.facts["exposed_s"],) * 2)
    low, high = fast.facts["one_rank_interval_s"]
    assert fast.facts["one_rank_s"] == pytest.approx(0.02) and low < 0.02 < high
    slow = _said(ServiceTimes(gradient=0.004))
    assert fmean(slow.times) == pytest.approx(0.004, rel=0.05)
    assert fmean(slow.times) == pytest.approx(slow.facts["with_server_s"], rel=0.01)
    why = " ".join(map(str.strip, slow.lines))
    assert "more than 5 % from the 2.50 ms of computing alone: the server is busy" in why
    assert "gradients applied by the server 1." in why and "received by the server" not in why


@pytest.mark.parametrize(
    ("hosts", "through"), [(1, "of the server, on one host,"), (9, "through the server's port")]
)
def test_messages_that_take_the_time_are_the_reason(hosts: int, through: str) -> None:
    """Rule: where bytes take most of the difference they are its reason, and not a busy server.

    The reason stands before the remark that there is no interval. Lines fit 79 columns, and those
    that go on are indented more.
    """
    slow = _said(ServiceTimes(receive=0.004, gradient=0.0001), updates=38, hosts=hosts)
    text = " ".join(map(str.strip, slow.lines))
    moved = f"1 MiB of gradients in and 2 MiB of weights out {through} in each update"
    assert f": most of the difference is the time of {moved}; 40 updates are needed" in text
    assert "the server is busy" not in text and "gradients received by the server" in text
    assert {len(line) - len(line.lstrip()) for line in slow.lines} == {4, 6}
    assert max(map(len, slow.lines)) <= 79


def test_parts_that_overlap_are_said_to() -> None:
    """Rule: parts of more than the whole overlap; nothing is explained by a negative time. Which
    part of the time is explained is said.
    """  # noqa: D205
    text = _sum_of_parts(0.235, {"computing": 0.04, "late": 0.214, "unexplained": -0.019}, few=True)
    assert text == (
        "235 ms an update, all explained: computing 40.0 ms, late 214 ms; less 19.0 ms in which"
        " these overlap"
    )
    text = _sum_of_parts(
        0.235, {"computing": 0.22, "late": 0.0001, "unexplained": 0.015}, few=False
    )
    assert text == (
        "of 235 ms an update 94 % (220 ms) are explained: computing 220 ms; unexplained 15.0 ms"
    )


def test_few_updates_are_named_at_what_is_unexplained() -> None:
    """Rule: with fewer updates than an interval needs, an unexplained part asks for more of them;
    explained parts do not.
    """  # noqa: D205
    text = _sum_of_parts(0.235, {"computing": 0.2, "unexplained": 0.035}, few=True)
    assert text.endswith("unexplained 35.0 ms (few updates: measure longer)")
    assert "few" not in _sum_of_parts(0.2, {"computing": 0.1, "late": 0.1}, few=True)


def test_a_missed_formula_always_has_a_reason() -> None:
    """Rule: where neither bytes nor a busy server are the reason, the greatest cause is named."""
    facts = {
        "split_s": {"computing": 0.02, "chance in the times drawn": 0.001, "late": 0.003},
        "lost": [],
        "joined": [],
        "utilisation": [0.1],
        "with_server_s": 0.02,
    }
    text = " ".join(_reasons(Uncertain(0.024, 0.023, 0.025), facts, 0.02, "bytes"))
    assert "of computing alone: the greatest part of the difference is late " in text
    none = {**facts, "split_s": {"computing": 0.02, "late": 0.001, "unexplained": 0.003}}
    text = " ".join(_reasons(Uncertain(0.024, 0.023, 0.025), none, 0.02, "bytes"))
    assert "the greatest part of the difference is not explained" in text
    # The prediction does not know of learners that left: what it lacks has that reason.
    left = {**none, "learners": 3, "lost": [[1.0, 2, "pid 7"]]}
    text = " ".join(_reasons(Uncertain(0.024, 0.023, 0.025), left, 0.02, "bytes"))
    assert ": 1 learner was lost, and the prediction is of 3 learners all the time " in text
    assert "not explained" not in text
    came = {**left, "joined": [[2.0, 3], [3.0, 4]]}
    text = " ".join(_reasons(Uncertain(0.024, 0.023, 0.025), came, 0.02, "bytes"))
    assert "1 learner was lost and 2 learners came, and" in text
    less = {
        **facts,
        "split_s": {"computing": 0.02, "chance in the times drawn": -0.002, "late": 0.0},
    }
    text = " ".join(_reasons(Uncertain(0.018, 0.017, 0.019), less, 0.02, "bytes"))
    assert "the greatest part of the difference is chance in the times drawn" in text


def test_a_missed_formula_is_split_into_what_took_how_long() -> None:
    """Rule: the parts add up to the whole, and each cost is in the part named after it."""
    law, names = Exponential("exp:20", 0.020, seed=3), update_protocol("k-sync:4", 16)
    predicted, beside = 0.0054, RoundCosts(travel=0.002, noticing=0.001, waking=0.0002, pushing=0.0)
    spent = ServiceTimes(0.00002, 0.00003, update=0.0001, weights=0.00003, round=sum(beside))

    def played(costs: ServiceTimes) -> float:
        return SimulatedRun(names, law.draw, 800, costs).per_update(8)

    mean = played(spent) + 0.0003
    found = attribute_time(played, spent, beside, predicted, mean)
    assert sum(found.values()) == pytest.approx(mean)
    assert found["computing"] == predicted
    assert found["unexplained"] == pytest.approx(0.0003)
    # A server that cannot keep up with some cost leaves it, and those after it, in what is left.
    some = attribute_time(
        lambda one: inf if one.weights else played(one), spent, beside, predicted, mean
    )
    assert sum(some.values()) == pytest.approx(mean)
    assert "weights sent to one after the other" not in some
    # All learners are cancelled, so that each update has the whole of a round once.
    assert found[TRAVEL] == pytest.approx(0.002, rel=0.05)
    assert found["learners that notice weights late"] == pytest.approx(0.001, rel=0.05)
    assert found["gradients that end late"] == pytest.approx(0.0002, rel=0.05)
    # The last of the four stands between the others and the update.
    assert found[RECEIVED] == pytest.approx(0.00002, rel=0.3)
    assert found["gradients applied by the server"] == pytest.approx(0.00013, rel=0.1)
    assert 0 < found["weights sent to one after the other"] < 16 * 0.00003
