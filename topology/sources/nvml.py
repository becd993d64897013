"""NVML through nvidia-ml-py: GPUs and the links between them."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations
from typing import Any

from topology.model.busid import canonical
from topology.model.topology import Kind, Level, LinkKind, Topology
from topology.sources import fabric
from topology.sources.draft import Draft
from topology.sources.nvml_ask import CALLS, MIG_CALLS, NAME, Asker, opened

#: nvmlGpuTopologyLevel_t; INTERNAL is two GPUs on one board, which nvidia-smi prints as PIX.
_LEVELS = {0: Level.PIX, 10: Level.PIX, 20: Level.PXB, 30: Level.PHB, 40: Level.NODE, 50: Level.SYS}
_P2P = ("p2p_read", "p2p_write", "p2p_nvlink", "p2p_atomics", "p2p_pci")
#: nvmlGpuP2PStatus_t, in nvidia-smi's words.
_P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3
_NPU_PEER, _SWITCH_PEER = 1, 2
_COMMON_SPEED, _LINK_SPEED, _C2C_COUNT, _C2C_RATE = 90, 164, 170, 172
_MB = 1e6
MAX_LINKS = 36
#: NVML's answers that end the scan of link numbers.
_LAST = ("Invalid Argument", "Not Supported")


def read() -> Topology:
    """Ask NVML. Raises ProbeError without nvidia-ml-py or driver, or if it does not start."""
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
        said = self.ask.facts(id, handle, CALLS)
        self.draft.state(id, **said)
        self._fabric(id, handle)
        if said.get("mig"):
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
        """All NVLinks, up or down; the scan ends where NVML says that there are no more."""
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
        version = min((int(v) for v in versions if v), default=None)
        self.draft.state(id, nvlink_rate=rate, nvlink_version=version)
        peers = Counter(end for link in up if (end := self._peer(id, handle, link)))
        for end, count in peers.items():
            if end != id and not any({x.a, x.b} == {id, end} for x in self.draft.links):
                self.draft.link(LinkKind.NVLINK, id, end, count, version=version, rate=rate)

    def _peer(self, id: str, handle: Any, link: int) -> str | None:
        """The device at the other end; a switch is added when it is first met."""
        kind = self.ask.call(id, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        pci = self.ask.call(id, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        busid = canonical(str(pci.busId)) if pci else None
        if busid in self.buses and busid is not None:
            return self.buses[busid]
        if kind == _SWITCH_PEER:
            # Guests see switches without a bus id; then one stands for all of them.
            if busid is None:
                return "NVS" if "NVS" in self.draft.devices else self.draft.add("NVS", Kind.SWITCH)
            index = sum(device.kind is Kind.SWITCH for device in self.draft.devices.values())
            self.buses[busid] = self.draft.add(f"NVS{index}", Kind.SWITCH, index, busid=busid)
            return self.buses[busid]
        if kind != _NPU_PEER:  # POWER9's NVLinks to the CPU are counted among those that are up
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
