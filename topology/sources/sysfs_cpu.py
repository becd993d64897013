"""CPUs, caches, cores and NUMA nodes from sysfs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from busbar.cpulist import MAX_CPU, listed, members
from busbar.errors import ProbeError
from topology.model.topology import Kind
from topology.sources.draft import Draft

_UNITS = {"K": 2**10, "M": 2**20, "": 1}
_ARM, _POWER = "arm64", "ppc64"


@dataclass
class Cpus:
    """The attributes in lines below devices/system and of /proc/cpuinfo."""

    info: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, dict[str, str]] = field(default_factory=dict)
    cpus: dict[int, dict[str, str]] = field(default_factory=dict)
    caches: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)

    def line(self, path: list[str], name: str, value: str, number: int) -> None:
        """Take a line, its path from below devices/system."""
        match = re.fullmatch(r"(node|cpu)([0-9]{1,6})", path[1]) if len(path) > 1 else None
        if match is None:
            return
        index = int(match[2])
        if index >= MAX_CPU:
            raise ProbeError("sysfs", f"{path[1]} is beyond any machine", number)
        if match[1] == "node" and len(path) == 2:
            self.nodes.setdefault(index, {})[name] = value
        elif match[1] == "cpu" and path[2:3] == ["topology"]:
            self.cpus.setdefault(index, {})[name] = value
        elif match[1] == "cpu" and path[2:3] == ["cache"] and len(path) == 4:
            self.caches.setdefault((index, path[3]), {})[name] = value

    def add(self, draft: Draft) -> list[int]:
        """Add packages, NUMA nodes, caches and cores; return the numbers of the NUMA nodes."""
        self._machine(draft)
        owners = self._packages(draft)
        home: dict[int, str] = {}
        for index, said in sorted(self.nodes.items()):
            cpus = members(said.get("cpulist", "")) or []
            packages = {owners[cpu] for cpu in cpus if cpu in owners}
            kb = said.get("memory_kb", "")
            id = draft.add(
                f"NUMA{index}",
                Kind.NUMA,
                index,
                parent=packages.pop() if len(packages) == 1 else "HOST",
                cpus=listed(cpus) or None,
                memory=int(kb[:15]) * 1024 if kb.isdecimal() else None,
            )
            home.update(dict.fromkeys(cpus, id))
        self._distances(draft)
        self._cores(draft, self._caches(draft, home, owners), home, owners)
        return sorted(self.nodes)

    def _machine(self, draft: Draft) -> None:
        arch = "x86_64" if "vendor_id" in self.info else None
        if "CPU implementer" in self.info:
            arch = _ARM
        elif self.info.get("cpu", "").startswith("POWER"):
            arch = _POWER
        draft.machine(arch=arch, vendor=self.info.get("vendor_id"), kernel=self.info.get("kernel"))
        draft.machine(model=self.info.get("model name") or self.info.get("cpu"))
        for fact, key in (("family", "cpu family"), ("cpu_model", "model")):
            if self.info.get(key, "").isdecimal():
                draft.machine(**{fact: int(self.info[key][:6])})

    def _packages(self, draft: Draft) -> dict[int, str]:
        owners: dict[int, str] = {}
        for cpu, said in sorted(self.cpus.items()):
            package = said.get("physical_package_id", "")
            if package.isdecimal():
                id = f"PKG{int(package[:6])}"
                if id not in draft.devices:
                    draft.add(id, Kind.PACKAGE, int(package[:6]), parent="HOST")
                owners[cpu] = id
        return owners

    def _distances(self, draft: Draft) -> None:
        numbers = sorted(self.nodes)
        for a in numbers:
            row = self.nodes[a].get("distance", "").split()
            if len(row) == len(numbers) and all(item.isdecimal() for item in row):
                for b, item in zip(numbers, row, strict=True):
                    if a != b:
                        draft.pair(f"NUMA{a}", f"NUMA{b}", numa_distance=int(item[:6]))

    def _caches(self, draft: Draft, home: dict[int, str], owners: dict[int, str]) -> dict[int, str]:
        """Last-level caches (the deepest level there is); nearer ones are a matter of the core."""
        data = [
            c
            for c in self.caches.values()
            if c.get("type") != "Instruction" and c.get("level", "").isdecimal()
        ]
        last = max((int(cache["level"][:3]) for cache in data), default=0)
        shared: dict[str, int | None] = {
            cache["shared_cpu_list"]: _size(cache.get("size", ""))
            for cache in data
            if int(cache["level"][:3]) == last and members(cache.get("shared_cpu_list", ""))
        }
        inside: dict[int, str] = {}
        for index, text in enumerate(sorted(shared, key=lambda t: members(t) or [])):
            cpus = members(text) or []
            parent = home.get(cpus[0]) or owners.get(cpus[0], "HOST")
            id = draft.add(
                f"L{last}:{index}", Kind.CACHE, index, name=f"L{last}", parent=parent, cpus=text
            )
            draft.state(id, size=shared[text])
            inside.update(dict.fromkeys(cpus, id))
        return inside

    def _cores(
        self, draft: Draft, caches: dict[int, str], home: dict[int, str], owners: dict[int, str]
    ) -> None:
        threads = {
            said.get("thread_siblings_list", str(cpu)): cpu for cpu, said in self.cpus.items()
        }
        whole = {text: found for text in threads if (found := members(text))}
        for index, text in enumerate(sorted(whole, key=lambda t: whole[t])):
            first = whole[text][0]
            parent = caches.get(first) or home.get(first) or owners.get(first, "HOST")
            draft.add(f"CORE{index}", Kind.CORE, index, parent=parent, cpus=text)


def _size(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,12})([KM]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else None
