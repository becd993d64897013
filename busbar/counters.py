"""Kernel counters that show what disturbed a rank: read them twice and take the difference.

For the calling thread: context switches, migrations, and the time in which it was runnable but had
no core. For its host: CPU time of other programs, steal time of the hypervisor, and core
frequencies. Counters that a kernel lacks are left out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from busbar.host import boot

_TICK = os.sysconf("SC_CLK_TCK")

#: Seconds that readings must be apart to give shares of the cores: /proc/stat counts ticks.
SHORTEST_S = 10 / _TICK
#: Shares of all cores used by other programs: from the first times count as disturbed, from the
#: second as much so. Beside two busy loops on two cores (a share of 0.6) single launches said 2,500
#: times as fast, in either direction.
OTHERS, MUCH = 0.05, 0.2


class Look(NamedTuple):
    """The kernel's counters at the time ``at``; times are in seconds.

    ``machine``: identifies the kernel; emulated hosts share one. ``switches``, ``forced``:
    voluntary and involuntary context switches. ``waited``: time in which the thread was
    runnable without a core. ``mine``: CPU time of this process, and of its children that have
    ended. ``busy``, ``steal``: of all ``cpus`` cores.
    """

    machine: str
    at: float
    switches: int
    forced: int
    migrations: int | None
    waited: float | None
    mine: float
    busy: float | None
    steal: float
    cpus: int
    hz: float | None


def look(
    proc: Path = Path("/proc"),
    devices: Path = Path("/sys/devices/system/cpu"),
    clock: Callable[[], float | None] = lambda: None,
) -> Look:
    """Read the counters of the calling thread and its host.

    ``clock``: measures the core's frequency in Hz; if it returns None, the kernel's value is read.
    """
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy, steal, cpus = _stat(proc / "stat")
    return Look(
        boot(proc / "sys/kernel/random/boot_id"),
        time.monotonic(),
        usage.ru_nvcsw,
        usage.ru_nivcsw,
        _migrations(proc / "thread-self/sched"),
        _waited(proc / "thread-self/schedstat"),
        time.process_time() + children.ru_utime + children.ru_stime,
        busy,
        steal,
        cpus,
        clock() or _hz(proc, devices),
    )


def _stat(path: Path) -> tuple[float | None, float, int]:
    """Busy seconds and stolen seconds of all cores together, and the number of cores.

    Columns as in proc(5): user nice system idle iowait irq softirq steal; guest is part of user.
    Time in interrupts is left out: it is no program's, and a run's own messages cause it.
    """
    try:
        lines = path.read_text().splitlines()
        ticks = [int(word) for word in lines[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None, 0.0, 0
    if len(ticks) < 8:
        return None, 0.0, 0
    user, nice, system, *_, steal = ticks
    cpus = sum(line.startswith("cpu") for line in lines) - 1
    return (user + nice + system) / _TICK, steal / _TICK, max(1, cpus)


def _migrations(path: Path) -> int | None:
    """How often the scheduler moved the thread; None without CONFIG_SCHED_DEBUG."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("se.nr_migrations"):
                return int(line.rpartition(":")[2])
    return None


def _waited(path: Path) -> float | None:
    """Seconds that the thread was runnable without a core; None if the kernel does not report them.

    The file has nanoseconds on a core, nanoseconds runnable without a core, and time slices (Linux,
    Documentation/scheduler/sched-stats.rst).
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split()[1]) / 1e9
    return None


def _hz(proc: Path, devices: Path) -> float | None:
    """The frequency in Hz of the core that this thread is on; None if it is not reported."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        core = int((proc / "thread-self/stat").read_text().rpartition(")")[2].split()[36])
        path = devices / f"cpu{core}/cpufreq/scaling_cur_freq"
        return float(path.read_text()) * 1e3
    return None


def between(before: Look, after: Look) -> dict[str, Any]:
    """The increase of each counter of one rank between two readings."""
    names = ("switches", "forced", "migrations", "waited", "mine", "busy", "steal")
    pairs = {name: (before._asdict()[name], after._asdict()[name]) for name in names}
    return {
        "machine": after.machine,
        "seconds": after.at - before.at,
        "cpus": after.cpus,
        "hz": [one for one in (before.hz, after.hz) if one is not None],
        **{name: None if None in both else both[1] - both[0] for name, both in pairs.items()},
    }


def gathered(everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The noise on all ranks as a record keeps it, from each rank's result of `between`.

    For each rank ``switches`` (the rank slept), ``forced`` (it lost or yielded its core),
    ``migrations`` and ``hz`` (the lower of the two readings). For each machine, as shares of all
    cores' time, ``steal`` (the hypervisor's other guests) and ``others`` (processes that are no
    ranks of this run). Unknown values are left out; also the shares if the readings are less than
    `SHORTEST_S` apart.
    """
    noise: dict[str, Any] = {}
    for name in ("switches", "forced", "migrations"):
        values = [one[name] for one in everyone]
        if None not in values and any(values):
            noise[name] = values
    if all(one["hz"] for one in everyone):
        noise["hz"] = [round(min(one["hz"])) for one in everyone]
    steal, others = [], []
    for machine in dict.fromkeys(one["machine"] for one in everyone):
        here = [one for one in everyone if one["machine"] == machine]
        if here[0]["busy"] is None or here[0]["seconds"] < SHORTEST_S:
            return noise
        all_time = here[0]["seconds"] * here[0]["cpus"]
        mine = sum(one["mine"] for one in here)
        steal.append(round(max(0.0, here[0]["steal"]) / all_time, 3))
        others.append(round(min(1.0, max(0.0, here[0]["busy"] - mine) / all_time), 3))
    if any(steal):
        noise["steal"] = steal
    if any(others):
        noise["others"] = others
    return noise


def taken(share: float) -> str:
    """``other programs took up to 63 % of all cores``; empty below `OTHERS`."""
    return "" if share < OTHERS else f"other programs took up to {100 * share:.0f} % of all cores"


def waiting(counters: Mapping[str, Any]) -> float:
    """The share of time in which a rank was runnable without a core; 0 if that is not known."""
    if not counters["waited"] or counters["seconds"] <= 0:
        return 0.0
    return float(min(1.0, max(0.0, counters["waited"] / counters["seconds"])))
