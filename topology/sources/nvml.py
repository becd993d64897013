"""NVML through nvidia-ml-py: GPUs and the links between them.

A query without an answer becomes a gap. Only this module loads pynvml.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from busbar.cpulist import listed
from busbar.errors import ProbeError
from busbar.installation import extra
from topology.model.device import Gap, Value, canonical
from topology.model.topology import Kind, Level, LinkKind, Topology
from topology.sources import fabric
from topology.sources.draft import Draft

NAME = "nvml"
_CPU_WORDS, _NODE_WORDS = 128, 16
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_IDLE = 0x1
#: Clock event reasons that slow a GPU down.
_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def _set(words: Iterable[int]) -> str | None:
    """The list of a bit set in 64-bit words, lowest first; None for the empty set."""
    bits = (64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    return listed(bits) or None


#: A fact, the NVML call, its arguments after the handle, and the conversion of the answer.
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
    ("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", (),
     lambda bits: tuple(word for bit, word in _REASONS.items() if bits & bit)),
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
#: Consumer cards do not support these; that answer is no gap.
_LACKING = frozenset({
    "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors",
})  # fmt: skip


def opened() -> Any:
    """Start NVML and return nvidia-ml-py; the caller shuts NVML down.

    Raises ProbeError without nvidia-ml-py, without a driver, or if NVML does not start.
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
    """Calls NVML; calls without an answer become gaps of ``draft``."""

    def __init__(self, library: Any, draft: Draft) -> None:
        self.nvml, self.draft = library, draft
        # An old driver with a new pynvml raises this error, which is no NVMLError.
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        self.errors: tuple[type[Exception], ...] = (library.NVMLError, mismatch)

    def call(self, subject: str, name: str, *arguments: Any) -> Any:
        """Call NVML. Returns the answer, or None after recording a gap."""
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
        """Record a gap, unless it is already recorded."""
        if Gap(NAME, subject, call, reason) not in self.draft.gaps:
            self.draft.gap(subject, call, reason)

    def facts(self, subject: str, handle: Any, queries: Iterable[Query]) -> dict[str, Value | None]:
        """The facts of all queries that are answered, by name."""
        answers = (
            (fact, make, self.call(subject, name, handle, *arguments))
            for fact, name, arguments, make in queries
        )
        return {fact: make(answer) for fact, make, answer in answers if answer is not None}

    def field(self, handle: Any, field: int, scope: int) -> float | None:
        """A field's value, or None. None is no gap, because drivers differ in their fields."""
        try:
            value = self.nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
        except self.errors:
            return None
        if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_UNION):
            return None
        return float(getattr(value.value, _UNION[value.valueType]))


@dataclass(frozen=True)
class State:
    """The state of a GPU at one moment; None for values that the GPU does not report.

    ``at``: seconds of a monotonic clock. ``energy_j``: a counter that drivers update every 20 to
    100 ms. ``throttle``: the reasons that slow the clocks, except idleness.
    """

    at: float
    clock_sm_hz: float | None = None
    clock_memory_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    throttle: tuple[str, ...] | None = None


_CALLS = tuple(call for call in CALLS if call[0] in State.__dataclass_fields__)


class Gauge:
    """Reads the state of a GPU, from any thread. NVML stays open until `close`."""

    def __init__(self, library: Any, handle: Any, names: dict[str, str]) -> None:
        self._library, self._handle = library, handle
        # A refused query is not repeated: it costs time and the answer stays the same.
        self._calls = [call for call in _CALLS if hasattr(library, call[1])]
        self.busid, self.uuid, self.name = names["busid"], names["uuid"], names["name"]

    def look(self) -> State:
        """Read the GPU's present state, which takes about 100 microseconds."""
        reading: dict[str, Any] = {}
        for call in self._calls:
            fact, name, arguments, make = call
            try:
                reading[fact] = make(getattr(self._library, name)(self._handle, *arguments))
            except self._library.NVMLError:
                # Another thread may have found the same at the same time.
                self._calls = [other for other in self._calls if other is not call]
        return State(time.monotonic(), **reading)

    def close(self) -> None:
        """Shut NVML down."""
        self._library.nvmlShutdown()


def gauge(busid: str | None, uuid: str | None) -> Gauge:
    """Open the GPU with this PCI address, or else this UUID; either may be None.

    Raises ProbeError without nvidia-ml-py or a driver, or if there is no such GPU.
    """
    library = opened()
    try:
        wanted = canonical(busid or "")
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            names = {
                "busid": canonical(str(library.nvmlDeviceGetPciInfo(handle).busId)) or "",
                "uuid": str(library.nvmlDeviceGetUUID(handle)),
                "name": str(library.nvmlDeviceGetName(handle)),
            }
            if names["busid"] == wanted if wanted else names["uuid"] == uuid:
                return Gauge(library, handle, names)
    except library.NVMLError as error:
        library.nvmlShutdown()
        raise ProbeError(NAME, f"no state of GPU {busid or uuid}: {error}") from None
    library.nvmlShutdown()
    raise ProbeError(NAME, f"no GPU {busid or uuid} among those that NVML lists")


#: nvmlGpuTopologyLevel_t; INTERNAL is two GPUs on one board, which nvidia-smi prints as PIX.
_LEVELS = {0: Level.PIX, 10: Level.PIX, 20: Level.PXB, 30: Level.PHB, 40: Level.NODE, 50: Level.SYS}
_P2P = ("p2p_read", "p2p_write", "p2p_nvlink", "p2p_atomics", "p2p_pci")
#: nvmlGpuP2PStatus_t, in nvidia-smi's words.
_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3
_NPU_PEER, _SWITCH_PEER = 1, 2
#: NVML numbers versions of NVLink (1.0, 2.0, 2.2, 3.0, 3.1, 4.0 …) one after the other.
_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
_COMMON_SPEED, _LINK_SPEED, _C2C_COUNT, _C2C_RATE = 90, 164, 170, 172
_MB = 1e6
MAX_LINKS = 36
#: NVML's answers that end the scan of link numbers.
_LAST = ("Invalid Argument", "Not Supported")


def read() -> Topology:
    """Query NVML. Raises ProbeError without nvidia-ml-py or a driver, or if NVML does not start."""
    library = opened()
    try:
        return _Reader(library).topology()
    finally:
        library.nvmlShutdown()


class _Reader:
    def __init__(self, library: Any) -> None:
        self.nvml = library
        self.draft = Draft(NAME)
        self.ask = Asker(library, self.draft)
        self.buses: dict[str, str] = {}

    def topology(self) -> Topology:
        call = self.ask.call
        version = call("machine", "nvmlSystemGetCudaDriverVersion")
        self.draft.machine(
            driver_version=call("machine", "nvmlSystemGetDriverVersion"),
            cuda_version=f"{version // 1000}.{version % 1000 // 10}" if version else None,
        )
        numbers = range(call("machine", "nvmlDeviceGetCount") or 0)
        handles = [(n, call(f"GPU{n}", "nvmlDeviceGetHandleByIndex", n)) for n in numbers]
        gpus = [(self._gpu(n, handle), handle) for n, handle in handles if handle is not None]
        for gpu in gpus:
            self._links(*gpu)
            self._chip_to_chip(*gpu)
        for (a, one), (b, other) in combinations(gpus, 2):
            level = call(f"{a} and {b}", "nvmlDeviceGetTopologyCommonAncestor", one, other)
            if level in _LEVELS:
                self.draft.pair(a, b, level=_LEVELS[level].name)
        for (a, one), (b, other) in permutations(gpus, 2):
            # The indices are literals: NVML_P2P_CAPS_INDEX_READ is a tuple in some releases.
            for index, fact in enumerate(_P2P):
                status = call(f"{a} and {b}", "nvmlDeviceGetP2PStatus", one, other, index)
                self.draft.pair(a, b, **{fact: _P2P_STATUS.get(status)})
        return self.draft.build()

    def _gpu(self, index: int, handle: Any) -> str:
        subject = f"GPU{index}"
        name = self.ask.call(subject, "nvmlDeviceGetName", handle)
        uuid = self.ask.call(subject, "nvmlDeviceGetUUID", handle)
        pci = self.ask.call(subject, "nvmlDeviceGetPciInfo", handle)
        busid = canonical(str(pci.busId)) if pci else None
        id = self.draft.gpu(index, str(name or ""), busid=busid, uuid=str(uuid) if uuid else None)
        if busid:
            self.buses[busid] = id
        facts = self.ask.facts(id, handle, CALLS)
        self.draft.state(id, **facts)
        self._fabric(id, handle)
        if facts.get("mig"):
            self._migs(id, handle)
        return id

    def _fabric(self, id: str, handle: Any) -> None:
        """State the fabric's registration and health: structure version 3, else 2."""
        call = "nvmlDeviceGetGpuFabricInfoV"
        names = (f"c_nvmlGpuFabricInfo_v{n}_t" for n in (3, 2))
        kinds = [kind for name in names if (kind := getattr(self.nvml, name, None)) is not None]
        if not kinds:
            self.ask.gap(id, call, "this nvidia-ml-py does not have the call")
            return
        for kind in kinds:
            info = kind()
            try:
                self.nvml.nvmlDeviceGetGpuFabricInfoV(handle, self.nvml.byref(info))
            except self.ask.errors as error:  # an older driver refuses a newer version
                refused = str(error)
                continue
            break
        else:
            self.ask.gap(id, call, refused)
            return
        self.draft.state(id, fabric_state=_FABRIC.get(info.state))
        if info.state == _COMPLETED:
            failed = f"NVML error {info.status}" if info.status else "success"
            health = fabric.SUMMARY.get(getattr(info, "healthSummary", 0))
            wrong = fabric.problems_of_mask(info.healthMask)
            self.draft.state(id, fabric_status=failed, fabric_health=health, fabric_problems=wrong)

    def _migs(self, gpu: str, handle: Any) -> None:
        for index in range(self.ask.call(gpu, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            call = "nvmlDeviceGetMigDeviceHandleByIndex"
            try:
                mig = getattr(self.nvml, call)(handle, index)
            except self.nvml.NVMLError_NotFound:
                continue  # an empty slot, not a gap
            except self.ask.errors as error:
                self.ask.gap(gpu, call, str(error))
                break
            id = f"{gpu}/MIG{index}"
            name = str(self.ask.call(id, "nvmlDeviceGetName", mig) or "")
            uuid = self.ask.call(id, "nvmlDeviceGetUUID", mig)
            facts = self.ask.facts(id, mig, MIG_CALLS)
            self.draft.add(
                id, Kind.MIG, index, name=name, uuid=str(uuid) if uuid else None, parent=gpu
            )
            self.draft.state(id, **facts)

    def _links(self, id: str, handle: Any) -> None:
        """State all NVLinks, up or down; the scan ends when NVML reports no more links."""
        up, down = list[int](), list[int]()
        for link in range(MAX_LINKS):
            try:
                active = self.nvml.nvmlDeviceGetNvLinkState(handle, link)
            except self.ask.errors as error:
                if not (up or down) or str(error) not in _LAST:
                    self.ask.gap(id, "nvmlDeviceGetNvLinkState", str(error))
                break
            (up if active else down).append(link)
        if up or down:
            self.draft.state(id, nvlinks=len(up), nvlinks_down=tuple(down) or None)
        common = self.ask.field(handle, _COMMON_SPEED, 0)
        rates = [self.ask.field(handle, _LINK_SPEED, link) or common for link in up]
        rate = min((mb * _MB for mb in rates if mb), default=None)
        versions = [self.ask.call(id, "nvmlDeviceGetNvLinkVersion", handle, link) for link in up]
        version = min((g for v in versions if v and (g := _GENERATIONS.get(int(v)))), default=None)
        self.draft.state(id, nvlink_rate=rate, nvlink_version=version)
        peers = Counter(end for link in up if (end := self._peer(id, handle, link)))
        for end, count in peers.items():
            if end != id and not any({x.a, x.b} == {id, end} for x in self.draft.links):
                self.draft.link(LinkKind.NVLINK, id, end, count, version=version, rate=rate)

    def _peer(self, id: str, handle: Any, link: int) -> str | None:
        """The device at the other end of a link; a switch is added at its first link."""
        kind = self.ask.call(id, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        pci = self.ask.call(id, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        busid = canonical(str(pci.busId)) if pci else None
        if busid in self.buses and busid is not None:
            return self.buses[busid]
        if kind == _SWITCH_PEER:
            # Guests see switches without a bus id; then one device stands for all of them.
            if busid is None:
                return "NVS" if "NVS" in self.draft.devices else self.draft.add("NVS", Kind.SWITCH)
            index = sum(device.kind is Kind.SWITCH for device in self.draft.devices.values())
            self.buses[busid] = self.draft.add(f"NVS{index}", Kind.SWITCH, index, busid=busid)
            return self.buses[busid]
        if kind != _NPU_PEER:  # POWER9's NVLinks to the CPU count among those that are up
            where = pci.busId if pci else None
            self.ask.gap(id, "nvlink", f"link {link} leads to {where}, not seen here")
        return None

    def _chip_to_chip(self, id: str, handle: Any) -> None:
        mode = self.ask.call(id, "nvmlDeviceGetC2cModeInfoV", handle)
        if mode is None or not mode.isC2cEnabled:
            return
        count, rate = (self.ask.field(handle, field, 0) for field in (_C2C_COUNT, _C2C_RATE))
        self.draft.state(id, c2c=True, c2c_links=int(count) if count else None)
        node = self.draft.devices[id].get("numa_affinity")
        if isinstance(node, str) and node.isdecimal():
            numa, each = f"NUMA{node}", rate * _MB if rate else None
            if numa not in self.draft.devices:
                self.draft.add(numa, Kind.NUMA, int(node))
            self.draft.link(LinkKind.C2C, id, numa, int(count or 1), rate=each)
