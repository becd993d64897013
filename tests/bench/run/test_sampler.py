"""GPUs while rows run: what is told of clocks and energy, by whom, and when nothing is told."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run import sampler
from bench.run.sampler import LONG, Gauges, Sampler
from busbar.errors import ProbeError
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import run
from collectives.execution.world import World
from reports.readers.codec import measurements
from reports.records.cores import energy, memory_clock, warnings
from reports.records.measurement import GpuSample, Record
from reports.tables.summary import summary
from tests.conftest import good, on_threads
from tests.reports.runs import allreduce, changed
from topology.sources.nvml import State

STEADY = State(0.0, 1.98e9, 3.2e9, 500.0, 60.0, 0.0, ())
IDLE_W, BUSY_W = 100.0, 600.0


class _Gpu:
    """A GPU that answers what it is told to, one state a look, then the last one for ever."""

    busid, uuid, name = "0000:1b:00.0", "GPU-1", "NVIDIA H200"

    def __init__(self, *states: State) -> None:
        self._states, self.looks, self.closed = list(states), 0, False
        self.seen = threading.Event()

    def look(self) -> State:
        self.looks += 1
        if self.looks >= 5:
            self.seen.set()
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def close(self) -> None:
        self.closed = True


def _window(*states: State, operations: int = 10, idle_w: float | None = IDLE_W) -> dict[str, Any]:
    watching = Sampler(_Gpu(*states), period=None)
    watching.idle_w = idle_w
    watching.begin()
    for _ in states[1:-1]:
        watching.take()
    return watching.end(operations)


def _at(seconds: float, watts: float = BUSY_W) -> State:
    return replace(STEADY, at=seconds, energy_j=1e6 + seconds * watts)


@given(st.floats(0.1, 20.0), st.integers(1, 1000))
def test_energy_is_told_of_long_windows_only(seconds: float, operations: int) -> None:
    """Rule: joules of an operation are those of the window above idle, and none below 2 s."""
    found = _window(_at(0.0), _at(seconds), operations=operations)
    if seconds < LONG:
        assert "energy_j" not in found and "energy_per_op_j" not in found
    else:
        expected = (BUSY_W - IDLE_W) * seconds / operations
        assert found["energy_per_op_j"] == pytest.approx(expected, rel=1e-6)
        assert found["energy_j"] == pytest.approx(BUSY_W * seconds, rel=1e-6)
        assert found["idle_w"] == IDLE_W


def test_what_is_not_known_is_not_told() -> None:
    """Rule: without idle power no joules an operation; what a GPU does not say is absent."""
    assert "energy_per_op_j" not in _window(_at(0.0), _at(3.0), idle_w=None)
    silent = _window(State(0.0), State(3.0))
    assert not {"clock_sm_hz", "power_w", "throttle", "energy_j"} & silent.keys()
    assert (silent["samples"], silent["seconds"]) == (2, 3.0)


def test_figures_are_of_the_work_and_not_of_the_look_before() -> None:
    """Rule: least, median and most of the looks while it ran; reasons to slow are gathered."""
    low, slow = replace(_at(0.0), clock_sm_hz=3e8), replace(_at(1.0), throttle=("sw_power_cap",))
    found = _window(low, slow, replace(_at(2.0), clock_sm_hz=1.5e9), _at(3.0))
    assert found["clock_sm_hz"] == [1.5e9, 1.98e9, 1.98e9]
    assert found["throttle"] == ["sw_power_cap"] and found["samples"] == 4


def test_the_idle_power_is_measured() -> None:
    """Rule: a GPU's power at rest is its counter over a time at rest that is long enough."""
    waited: list[float] = []
    watching = Sampler(_Gpu(_at(0.0, IDLE_W), _at(2.5, IDLE_W)), period=None)
    watching.rest(waited.append)
    assert watching.idle_w == pytest.approx(IDLE_W) and waited[0] >= LONG


def test_the_thread_looks_only_while_a_window_is_open() -> None:
    """Rule: looks come by themselves inside a window, and none before or after."""
    gpu = _Gpu(STEADY)
    watching = Sampler(gpu, period=1e-4)
    assert gpu.looks == 0
    watching.begin()
    assert gpu.seen.wait(30)
    watching.end(1)
    watching.close()
    assert gpu.closed
    done = gpu.looks
    assert watching._thread is not None and not watching._thread.is_alive() and gpu.looks == done


# -- all ranks


class _OnGpu:
    device_uuid = None

    def __init__(self, busid: str | None) -> None:
        self.device_busid = busid


def _ranks(
    busids: list[str | None],
    watch: Callable[[str | None, str | None], _Gpu],
    body: Callable[[Gauges], Any],
    **options: Any,
) -> list[Any]:
    def one(world: World) -> Any:
        where = _OnGpu(busids[world.rank])
        gauges = Gauges(world, where, watch=watch, wait=lambda _: None, period=None, **options)
        try:
            return body(gauges)
        finally:
            gauges.close()

    return run(len(busids), one, deadline=30)


def _busy(busid: str | None, _: str | None) -> _Gpu:
    """Idle for 2.5 s, then a window of 4 s."""
    found = _Gpu(_at(0.0, IDLE_W), _at(2.5, IDLE_W), _at(0.0), _at(4.0))
    found.busid = busid or ""
    return found


def _one_row(gauges: Gauges) -> Any:
    gauges.begin()
    return gauges.end(8), gauges.why


def test_every_gpu_is_watched_once() -> None:
    """Rule: of ranks that share a GPU the first one watches it.

    All ranks know all entries, once.
    """
    everyone = _ranks(["a", "b", "a", None], _busy, _one_row)
    assert everyone == [everyone[0]] * 4
    samples, why = everyone[0]
    assert [(one.rank, one.busid) for one in samples] == [(0, "a"), (1, "b")] and why == ""
    assert [one.energy_per_op_j for one in samples] == pytest.approx([250.0, 250.0])


def test_without_gpus_nothing_is_watched() -> None:
    """Rule: transports without a GPU cost nothing and say nothing."""

    def refuse(_: object, __: object) -> _Gpu:
        raise AssertionError("nobody asks for a GPU here")

    assert _ranks([None, None], refuse, _one_row) == [((), "")] * 2


def test_a_gpu_that_cannot_be_watched_is_said() -> None:
    """Rule: where one rank's GPU does not answer, all know why, and no half picture is recorded."""

    def watch(busid: str | None, uuid: str | None) -> _Gpu:
        if busid == "b":
            raise ProbeError("nvml", "NVML does not start")
        return _busy(busid, uuid)

    for samples, why in _ranks(["a", "b"], watch, _one_row):
        assert samples == () and "NVML does not start" in why


@given(st.floats(1e-6, 10.0), st.integers(1, 100))
def test_with_energy_a_row_goes_on_for_two_seconds(seconds: float, iterations: int) -> None:
    """Rule: --energy adds what is missing to 2 s of iteration; without it nothing is added."""
    timed = Record(times_s=(seconds,) * iterations, iterations=iterations, stopped="precise")

    def body(gauges: Gauges) -> int:
        return gauges.more(timed)

    [more] = _ranks(["a"], _busy, body, energy=True)
    assert (iterations + more) * seconds >= LONG and (
        more == 0 or more * seconds <= 1.2 * LONG + seconds
    )
    assert _ranks(["a"], _busy, body, energy=False) == [0]


# -- what is made of it


def _entry(rank: int, clock: float = 3.2e9, **more: Any) -> GpuSample:
    known = {"clock_memory_hz": (clock,) * 3, "clock_sm_hz": (1.9e9,) * 3, **more}
    return GpuSample(rank=rank, busid=f"0000:{rank:02x}:00.0", **known)


def test_clocks_that_differ_or_move_are_said() -> None:
    """Rule: another memory clock, a clock that moves, a reason to slow: a line each; else none."""
    assert not list(warnings([_entry(0), _entry(1)]))
    [differ] = warnings([_entry(0), _entry(1, 2.6e9)])
    assert "rank 1 (0000:01:00.0) 2600 MHz" in differ and "3200 MHz" in differ
    [moved] = warnings([_entry(0, clock_sm_hz=(1.2e9, 1.9e9, 1.9e9))])
    assert "SM clock of rank 0" in moved and "from 1200 MHz to 1900 MHz" in moved
    [slowed] = warnings([_entry(0, throttle=("hw_thermal_slowdown",))])
    assert "slowed by hw_thermal_slowdown" in slowed


def test_the_closing_table_has_clock_and_joules() -> None:
    """Rule: memory clock of the slowest GPU, joules of all GPUs together; absent where unknown."""
    gpus = (_entry(0, energy_per_op_j=2.0), _entry(1, 2.6e9, energy_per_op_j=0.5))
    assert (memory_clock(gpus), energy(gpus)) == (2.6e9, 2.5)
    assert energy((_entry(0), gpus[1])) is None and memory_clock(()) is None
    unknown = allreduce("ring", 2, 1 << 20, (1e-3,) * 6, transport="nccl")
    text = "\n".join(summary(changed(unknown, gpus=gpus).every))
    assert "J per operation" in text and "2.50" in text and "memory clock in MHz" in text
    assert "2600" in text
    assert "MHz" not in "\n".join(summary(unknown.every))


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of this process whose transport says that all use one GPU, which looks busy."""
    monkeypatch.setattr(InprocTransport, "device_busid", "0000:1b:00.0", raising=False)
    monkeypatch.setattr(InprocTransport, "device_name", "NVIDIA H200", raising=False)
    monkeypatch.setattr(sampler, "_by_nvml", lambda busid, uuid: _Gpu(_at(0.0), _at(3.0, 2e3)))
    yield


@pytest.mark.usefixtures("on_gpus")
def test_a_sweep_records_its_gpus(tmp_path: Any) -> None:
    """Rule: the records of a sweep name GPU and mapping and hold an entry a placement and GPU."""
    out = tmp_path / "r.jsonl"
    text = good(on_threads("allreduce", "--ranks 2 -b 1K -e 1K -n 2 -A ring --out", str(out)))
    both = measurements(out.read_text())
    environment = both[0].run.environment
    assert environment["devices"] == ["NVIDIA H200"]
    assert environment["mapping"]["gpu"] == ["0000:1b:00.0"] * 2
    assert [(one.placement, gpu.rank) for one in both for gpu in one.gpus] == [
        ("out", 0), ("in", 0)
    ]  # fmt: skip
    assert both[0].gpus[0].operations == 3 and "memory clock in MHz" in text
