"""Queries NVML through nvidia-ml-py; a query without an answer becomes a gap.

The answers are plain values, so that they can be saved and read elsewhere
(``topology.sources.nvml``). Only this module uses pynvml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from busbar.errors import ProbeError
from busbar.installation import extra

NAME = "nvml"
MAX_LINKS = 36
CPU_WORDS, NODE_WORDS = 128, 16
P2P = ("p2p_read", "p2p_write", "p2p_nvlink", "p2p_atomics", "p2p_pci")
_FIELD_LINK_SPEED, _FIELD_C2C_COUNT, _FIELD_C2C_RATE = 164, 170, 172
_FIELD_COMMON_SPEED = 90
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

#: Fact, NVML call, its arguments after the handle, and what to make of the answer.
CALLS: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("name", "nvmlDeviceGetName", (), str),
    ("uuid", "nvmlDeviceGetUUID", (), str),
    ("busid", "nvmlDeviceGetPciInfo", (), lambda pci: pci.busId),
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
    ("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", (), int),
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
    ("cpus", "nvmlDeviceGetCpuAffinity", (CPU_WORDS,), list),
    ("nodes", "nvmlDeviceGetMemoryAffinity", (NODE_WORDS, 0), list),
)  # fmt: skip
_MIG_CALLS: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("name", "nvmlDeviceGetName", (), str),
    ("uuid", "nvmlDeviceGetUUID", (), str),
    ("memory", "nvmlDeviceGetMemoryInfo", (), lambda memory: memory.total),
    ("multiprocessors", "nvmlDeviceGetAttributes", (), lambda what: what.multiprocessorCount),
)
#: NVML's answers that end the scan of link numbers.
_LAST = ("Invalid Argument", "Not Supported")


def ask() -> dict[str, Any]:
    """NVML's answers in the form that ``nvml.parse`` reads as JSON. Raises as `opened`."""
    pynvml = opened()
    try:
        return _Asker(pynvml).machine()
    finally:
        pynvml.nvmlShutdown()


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


#: What cards for consumers do not have; that they say so is an answer.
_LACKING = frozenset(
    {
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors",
    }
)


class _Asker:
    def __init__(self, library: Any) -> None:
        self.nvml = library
        # An old driver below a new pynvml raises this one, which is no NVMLError.
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        self.errors: tuple[type[Exception], ...] = (library.NVMLError, mismatch)
        self.gaps: list[list[str]] = []

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

    def gap(self, subject: str, name: str, reason: str) -> None:
        if [subject, name, reason] not in self.gaps:
            self.gaps.append([subject, name, reason])

    def machine(self) -> dict[str, Any]:
        count = self.call("machine", "nvmlDeviceGetCount") or 0
        handles = [(n, self.call(f"GPU{n}", "nvmlDeviceGetHandleByIndex", n)) for n in range(count)]
        found = [(n, handle) for n, handle in handles if handle is not None]
        version = self.call("machine", "nvmlSystemGetCudaDriverVersion")
        return {
            "busbar_nvml": 1,
            "machine": {
                "driver_version": self.call("machine", "nvmlSystemGetDriverVersion"),
                "cuda_version": f"{version // 1000}.{version % 1000 // 10}" if version else None,
            },
            "gpus": [self.gpu(n, handle) for n, handle in found],
            "pairs": [self.pair(a, b) for a in found for b in found if a[0] != b[0]],
            "gaps": self.gaps,
        }

    def gpu(self, index: int, handle: Any) -> dict[str, Any]:
        subject = f"GPU{index}"
        said = {"index": index, **self.table(subject, handle, CALLS)}
        said["links"] = self.links(subject, handle)
        said |= self.fabric(subject, handle) | self.c2c(subject, handle)
        if said.get("mig"):
            said["migs"] = self.migs(subject, handle)
        return said

    def table(self, subject: str, handle: Any, calls: Any) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for fact, name, arguments, make in calls:
            answer = self.call(subject, name, handle, *arguments)
            if answer is not None:
                said[fact] = make(answer)
        return said

    def migs(self, subject: str, handle: Any) -> list[dict[str, Any]]:
        found = []
        for index in range(self.call(subject, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            try:
                mig = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except self.nvml.NVMLError_NotFound:
                continue  # an empty slot, not a gap
            except self.errors as error:
                self.gap(subject, "nvmlDeviceGetMigDeviceHandleByIndex", str(error))
                break
            found.append({"index": index, **self.table(f"{subject}/MIG{index}", mig, _MIG_CALLS)})
        return found

    def links(self, subject: str, handle: Any) -> list[dict[str, Any]]:
        """All NVLinks, up or down; the scan ends where NVML says that there are no more."""
        found: list[dict[str, Any]] = []
        common = self.field(handle, _FIELD_COMMON_SPEED, 0)
        for link in range(MAX_LINKS):
            try:
                up = bool(self.nvml.nvmlDeviceGetNvLinkState(handle, link))
            except self.errors as error:
                if not found or str(error) not in _LAST:
                    self.gap(subject, "nvmlDeviceGetNvLinkState", str(error))
                break
            row: dict[str, Any] = {"link": link, "up": up}
            if up:
                row["version"] = self.call(subject, "nvmlDeviceGetNvLinkVersion", handle, link)
                row["peer"] = self.call(
                    subject, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link
                )
                pci = self.call(subject, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                row["peer_busid"] = pci.busId if pci else None
                row["rate_mb_s"] = self.field(handle, _FIELD_LINK_SPEED, link) or common
            found.append(row)
        return found

    def field(self, handle: Any, field: int, scope: int) -> float | None:
        """A field's value; None, without a gap, as drivers differ in the fields they have."""
        try:
            value = self.nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
        except self.errors:
            return None
        if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_UNION):
            return None
        return float(getattr(value.value, _UNION[value.valueType]))

    def fabric(self, subject: str, handle: Any) -> dict[str, Any]:
        make = getattr(self.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
        if make is None:
            self.gap(
                subject, "nvmlDeviceGetGpuFabricInfoV", "this nvidia-ml-py does not have the call"
            )
            return {}
        info = make()
        if self.call(subject, "nvmlDeviceGetGpuFabricInfoV", handle, self.nvml.byref(info)) is None:
            return {}
        return {"fabric": info.state, "fabric_status": info.status}

    def c2c(self, subject: str, handle: Any) -> dict[str, Any]:
        mode = self.call(subject, "nvmlDeviceGetC2cModeInfoV", handle)
        if mode is None or not mode.isC2cEnabled:
            return {}
        count = self.field(handle, _FIELD_C2C_COUNT, 0)
        return {
            "c2c": True,
            "c2c_links": int(count) if count else None,
            "c2c_rate_mb_s": self.field(handle, _FIELD_C2C_RATE, 0),
        }

    def pair(self, a: tuple[int, Any], b: tuple[int, Any]) -> dict[str, Any]:
        subject = f"GPU{a[0]} and GPU{b[0]}"
        said: dict[str, Any] = {"a": a[0], "b": b[0]}
        if a[0] < b[0]:
            said["level"] = self.call(subject, "nvmlDeviceGetTopologyCommonAncestor", a[1], b[1])
        # The indices are literals: NVML_P2P_CAPS_INDEX_READ is a tuple in some releases.
        for index, fact in enumerate(P2P):
            said[fact] = self.call(subject, "nvmlDeviceGetP2PStatus", a[1], b[1], index)
        return said
