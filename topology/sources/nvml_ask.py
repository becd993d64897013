"""Queries to NVML through nvidia-ml-py: which facts, by which calls, in our units.

A query without an answer is a gap. Only this module loads pynvml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from busbar.cpulist import listed
from busbar.errors import ProbeError
from busbar.installation import extra
from topology.model.facts import Gap, Value
from topology.sources.draft import Draft

NAME = "nvml"
_CPU_WORDS, _NODE_WORDS = 128, 16
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_IDLE = 0x1
#: Bits of the clock event reasons that mean a GPU slower than it could be.
_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def _slowed_by(bits: int) -> tuple[str, ...]:
    return tuple(word for bit, word in _REASONS.items() if bits & bit)


def _set(words: Iterable[int]) -> str | None:
    """The list of a bit set in words of 64 bits, lowest first; None for the empty set."""
    bits = (64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    return listed(bits) or None


#: A fact, the NVML call, its arguments after the handle, and what to make of the answer.
Query = tuple[str, str, tuple[int, ...], Callable[[Any], Any]]
CALLS: tuple[Query, ...] = (
    ("pci_device", "nvmlDeviceGetPciInfo", (), lambda pci: f"0x{pci.pciDeviceId >> 16:04x}"),
    ("sm", "nvmlDeviceGetCudaComputeCapability", (), lambda pair: pair[0] * 10 + pair[1]),
    ("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", (), int),
    ("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), int),
    ("pcie_gen_device_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration", (), int),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), int),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), int),
    ("clock_sm_hz", "nvmlDeviceGetClockInfo", (1,), lambda mhz: mhz * 1_000_000),
    ("clock_sm_app_hz", "nvmlDeviceGetApplicationsClock", (1,), lambda mhz: mhz * 1_000_000),
    ("clock_sm_max_hz", "nvmlDeviceGetMaxClockInfo", (1,), lambda mhz: mhz * 1_000_000),
    ("clock_memory_hz", "nvmlDeviceGetClockInfo", (2,), lambda mhz: mhz * 1_000_000),
    ("clock_memory_app_hz", "nvmlDeviceGetApplicationsClock", (2,), lambda mhz: mhz * 1_000_000),
    ("clock_memory_max_hz", "nvmlDeviceGetMaxClockInfo", (2,), lambda mhz: mhz * 1_000_000),
    ("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", (), _slowed_by),
    ("idle", "nvmlDeviceGetCurrentClocksThrottleReasons", (), lambda bits: bool(bits & _IDLE)),
    ("pstate", "nvmlDeviceGetPerformanceState", (), lambda state: f"P{state}"),
    ("power_w", "nvmlDeviceGetPowerUsage", (), lambda mw: mw / 1000),
    ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), lambda mw: mw / 1000),
    ("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), lambda mw: mw / 1000),
    ("energy_j", "nvmlDeviceGetTotalEnergyConsumption", (), lambda mj: mj / 1000),
    ("temperature_c", "nvmlDeviceGetTemperature", (0,), int),
    ("temperature_slowdown_c", "nvmlDeviceGetTemperatureThreshold", (1,), int),
    ("ecc", "nvmlDeviceGetEccMode", (), lambda modes: bool(modes[0])),
    ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), int),
    ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), int),
    ("ecc_uncorrected_lifetime", "nvmlDeviceGetTotalEccErrors", (1, 1), int),
    ("rows_pending", "nvmlDeviceGetRemappedRows", (), lambda rows: bool(rows[2])),
    ("rows_failed", "nvmlDeviceGetRemappedRows", (), lambda rows: bool(rows[3])),
    ("memory", "nvmlDeviceGetMemoryInfo", (), lambda memory: memory.total),
    ("memory_used", "nvmlDeviceGetMemoryInfo", (), lambda memory: memory.used),
    ("bar1", "nvmlDeviceGetBAR1MemoryInfo", (), lambda bar1: bar1.bar1Total),
    ("mig", "nvmlDeviceGetMigMode", (), lambda modes: bool(modes[0])),
    ("processes", "nvmlDeviceGetComputeRunningProcesses", (), len),
    ("utilization_percent", "nvmlDeviceGetUtilizationRates", (), lambda rates: rates.gpu),
    ("gpu_numa_id", "nvmlDeviceGetNumaNodeId", (), lambda node: None if node < 0 else int(node)),
    ("cpu_affinity", "nvmlDeviceGetCpuAffinity", (_CPU_WORDS,), _set),
    ("numa_affinity", "nvmlDeviceGetMemoryAffinity", (_NODE_WORDS, 0), _set),
)  # fmt: skip
MIG_CALLS: tuple[Query, ...] = (
    ("memory", "nvmlDeviceGetMemoryInfo", (), lambda memory: memory.total),
    ("multiprocessors", "nvmlDeviceGetAttributes", (), lambda what: what.multiprocessorCount),
)
#: What cards for consumers do not have; that they say so is an answer.
_LACKING = frozenset({
    "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors",
})  # fmt: skip


def opened() -> Any:
    """Return nvidia-ml-py with NVML started; whoever asks shuts it down.

    Raises ProbeError without nvidia-ml-py, without driver, or when NVML does not start.
    """
    try:
        import pynvml
    except ImportError:
        raise ProbeError(NAME, f"nvidia-ml-py is not installed: {extra('nvml')}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ProbeError(
            NAME, f"NVML does not start: {error}; is there a driver and a GPU?"
        ) from None
    return pynvml


class Asker:
    """Asks NVML; what it does not answer becomes a gap of ``draft``."""

    def __init__(self, library: Any, draft: Draft) -> None:
        self.nvml, self.draft = library, draft
        # An old driver below a new pynvml raises this one, which is no NVMLError.
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        self.errors: tuple[type[Exception], ...] = (library.NVMLError, mismatch)

    def call(self, subject: str, name: str, *arguments: Any) -> Any:
        """The answer, or None and a gap."""
        function = getattr(self.nvml, name, None)
        if function is None:
            self.gap(subject, name, "this nvidia-ml-py does not have the call")
            return None
        try:
            return function(*arguments)
        except self.errors as error:
            unsupported = getattr(self.nvml, "NVML_ERROR_NOT_SUPPORTED", 3)
            if name not in _LACKING or getattr(error, "value", None) != unsupported:
                self.gap(subject, name, str(error))
            return None

    def gap(self, subject: str, call: str, reason: str) -> None:
        """Record a gap once."""
        if Gap(NAME, subject, call, reason) not in self.draft.gaps:
            self.draft.gap(subject, call, reason)

    def facts(self, subject: str, handle: Any, queries: Iterable[Query]) -> dict[str, Value | None]:
        """What the queries that are answered state, by fact."""
        answers = (
            (fact, make, self.call(subject, name, handle, *arguments))
            for fact, name, arguments, make in queries
        )
        return {fact: make(answer) for fact, make, answer in answers if answer is not None}

    def field(self, handle: Any, field: int, scope: int) -> float | None:
        """A field's value; None, without a gap, as drivers differ in the fields they have."""
        try:
            value = self.nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
        except self.errors:
            return None
        if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_UNION):
            return None
        return float(getattr(value.value, _UNION[value.valueType]))
