"""Each rule of check: what it finds, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from topology.diagnostics import check, driver_down, miscounted
from topology.model.device import Fact, Value
from topology.model.merge import merge
from topology.model.rates import published
from topology.model.topology import Device, Kind, PairFact, Topology
from topology.sources import gather, smi_xml, sysfs

from . import texts

Facts = dict[str, Value]


def _machine(
    *gpus: Facts, pairs: dict[tuple[int, int], Facts] | None = None, **all_of_them: Value
) -> Topology:
    devices = tuple(
        Device(f"GPU{n}", Kind.GPU, n, facts=tuple(Fact(k, v, "x") for k,
        v in ({"model": "M"} | all_of_them | own).items()))
        for n, own in enumerate(gpus)
    )  # fmt: skip
    stated = tuple(
        PairFact(f"GPU{a}", f"GPU{b}", Fact(name, value, "x"))
        for (a, b), facts in (pairs or {}).items()
        for name, value in facts.items()
    )
    return Topology(devices, (), stated, sources=("x",))


def _with_nic(machine: Topology, levels: Sequence[str], **facts: Value) -> Topology:
    """The machine and a NIC, so far from each of its GPUs."""
    known = tuple(Fact(name, value, "x") for name, value in facts.items())
    nic = Device("NIC0", Kind.NIC, 0, name="eno1", busid="0000:01:00.0", facts=known)
    far = (PairFact(f"GPU{n}", "NIC0", Fact("level", level, "x")) for n, level in enumerate(levels))
    return Topology((*machine.devices, nic), (), (*machine.pairs, *far))


def _codes(topology: Topology) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.subjects for finding in check(topology)}


WORK: Facts = {"pstate": "P0", "idle": False}
REST: Facts = {"pstate": "P8", "idle": True}
SXM = "NVIDIA A100-SXM4-80GB"
CASES: list[tuple[str, tuple[Facts, Facts], dict[str, tuple[str, ...]]]] = [
    ("all is well", ({}, {}), {}),
    ("uncorrected", ({}, {"ecc_uncorrected": 1}), {"ecc-uncorrected": ("GPU1",)}),
    ("remapping failed", ({"rows_failed": True}, {}), {"ecc-uncorrected": ("GPU0",)}),
    ("remapping waits", ({"rows_pending": True}, {}), {"ecc-rows-pending": ("GPU0",)}),
    ("corrected", ({"ecc_corrected": 9}, {"ecc_corrected": 0}), {"ecc-corrected": ("GPU0",)}),
    ("ecc modes", ({"ecc": True}, {"ecc": False}), {"ecc-mode-differs": ("GPU0", "GPU1")}),
    ("fabric", ({"fabric_state": "in progress"}, {"fabric_state": "completed"}),
    {"nvswitch-fabric": ("GPU0",)}),
    ("fabric failed", ({"fabric_state": "completed", "fabric_status": "NVML error 3"}, {}),
    {"nvswitch-fabric": ("GPU0",)}),
    ("fabric unhealthy", ({"fabric_state": "completed", "fabric_health": "unhealthy"}, {}),
    {"nvswitch-fabric-health": ("GPU0",)}),
    ("fabric degraded", ({}, {"fabric_health": "healthy", "fabric_problems": ("x",)}),
    {"nvswitch-fabric-health": ("GPU1",)}),
    ("fabric healthy", ({"fabric_health": "healthy", "fabric_problems": ()}, {}), {}),
    ("fabric down and unhealthy", ({"fabric_state": "in progress", "fabric_health": "unhealthy"},
    {}), {"nvswitch-fabric": ("GPU0",)}),
    ("thermal", (WORK | {"throttle": ("hw_thermal_slowdown",)}, {}),
    {"throttled-by-board": ("GPU0",)}),
    ("power cap", (WORK | {"throttle": ("sw_power_cap",)}, {}), {"throttled": ("GPU0",)}),
    ("power cap at rest", (REST | {"throttle": ("sw_power_cap",)}, {}), {}),
    ("memory clock", ({"clock_memory_max_hz": 1.7715e9}, {"clock_memory_max_hz": 1.683e9}),
    {"memory-clock-differs": ("GPU1",)}),
    ("rounding", ({"clock_memory_max_hz": 1.7715e9}, {"clock_memory_max_hz": 1.771e9}), {}),
    ("clocks now", (WORK | {"clock_memory_hz": 2e9}, WORK | {"clock_memory_hz": 1e9}),
    {"memory-clock-differs": ("GPU1",)}),
    ("one rests", (WORK | {"clock_memory_hz": 2e9}, REST | {"clock_memory_hz": 1e9}), {}),
    ("sm clock", ({"clock_sm_app_hz": 1e9}, {"clock_sm_app_hz": 2e9}),
    {"sm-clock-differs": ("GPU0",)}),
    ("other models", ({"model": "A", "clock_memory_max_hz": 2e9}, {"model": "B",
    "clock_memory_max_hz": 1e9}), {"mixed-models": ("GPU1",)}),
    ("limit", ({"power_limit_w": 200.0, "power_default_w": 300.0}, {}),
    {"power-limit-lowered": ("GPU0",)}),
    ("width", ({"pcie_width": 8, "pcie_width_max": 16}, {}), {"pcie-width": ("GPU0",)}),
    ("narrow port", ({"pcie_width": 8, "pcie_width_max": 16, "port_width_max": 8}, {}),
    {"pcie-slot-width": ("GPU0",)}),
    ("generation", (WORK | {"pcie_gen": 1, "pcie_gen_max": 4}, {}), {"pcie-generation": ("GPU0",)}),
    ("generation at rest", (REST | {"pcie_gen": 1, "pcie_gen_max": 4}, {}), {}),
    ("perhaps at rest", ({"pcie_gen": 1, "pcie_gen_max": 4}, {}), {}),
    ("port's generation", (WORK | {"pcie_gen": 3, "pcie_gen_max": 4, "port_gen_max": 3}, {}), {}),
    ("slots", ({"pcie_gen_max": 4, "pcie_width_max": 16}, {"pcie_gen_max": 3,
    "pcie_width_max": 16}), {"pcie-slots-differ": ("GPU1",)}),
    ("link down", ({"nvlinks": 5, "nvlinks_down": (3,)}, {"nvlinks": 5, "nvlinks_down": (0,)}),
    {"nvlink-down": ("GPU0", "GPU1")}),
    ("fewer links", ({"nvlinks": 12}, {"nvlinks": 11}), {"nvlink-down": ("GPU1",)}),
    ("no bridge", ({"nvlinks": 0, "nvlinks_down": (0, 1)}, {"nvlinks": 0, "nvlinks_down": (0,
    1)}), {}),
    ("slow links", ({"nvlink_rate": 25e9}, {"nvlink_rate": 20e9}), {"nvlink-slow": ("GPU1",)}),
    ("link errors", ({"nvlink_errors": 2}, {"nvlink_errors": 0}), {"nvlink-errors": ("GPU0",)}),
    ("a virtual machine",
     ({"pcie_width": 8, "pcie_width_max": 16, "virtualization": "Pass-Through"},
      {}),
     {}),
    ("no link of a board",
     ({"model": SXM, "nvlinks": 0},
      {"model": SXM}),
     {"nvlinks-missing": ("GPU0",)}),
    ("MIG has none",
     ({"model": SXM, "nvlinks": 0, "mig": True},
      {"model": SXM}),
     {}),
    ("a card needs no bridge",
     ({"model": "NVIDIA A100 80GB PCIe", "nvlinks": 0},
      {"model": "NVIDIA A100 80GB PCIe"}),
     {}),
    ("copies", ({"host_to_device": 5e9}, {"host_to_device": 11e9}), {"slow-link": ("GPU0",)}),
    ("copies of a model",
     ({"model": "NVIDIA L40S", "device_to_host": 11e9},
      {"model": "NVIDIA L40S"}),
     {"slow-link": ("GPU0",)}),
    ("acs", ({"port_acs": True}, {"port_acs": False}), {"acs": ("GPU0",)}),
    ("iommu", ({"iommu": "DMA-FQ"}, {"iommu": "identity"}), {"iommu": ("GPU0",)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_fact_and_its_finding(
    gpus: tuple[Facts, Facts], expected: dict[str, tuple[str, ...]]
) -> None:
    """Rule: each rule runs on its fact alone, names the devices, and does not fire otherwise."""
    assert _codes(_machine(*gpus)) == expected


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"level": "PIX", "p2p_read": "CNS"}, "p2p-refused"),
        ({"level": "PHB", "p2p_read": "NS"}, "p2p-refused"),
        ({"level": "SYS", "p2p_read": "TNS"}, ""),
        ({"level": "SYS", "nvlinks": 4, "p2p_read": "TNS"}, "p2p-refused"),
        ({"level": "PIX", "p2p_read": "OK"}, ""),
        ({"level": "PXB", "p2p_access": False}, "p2p-refused"),
        ({"level": "PIX"}, ""),
        # A P2P matrix by itself: no source says what connects the two.
        ({"p2p_read": "CNS"}, "p2p-unavailable"),
        ({"p2p_access": False}, "p2p-unavailable"),
        ({"p2p_read": "OK"}, ""),
        ({"p2p_read": "U"}, ""),
    ],
)
def test_p2p_is_missed_only_where_the_path_would_allow_it(facts: Facts, code: str) -> None:
    """Rule: NVLink, switches and a common host bridge carry P2P; the way between sockets need not.

    Where no path is known a refusal is found, too; unknown is no refusal.
    """
    found = _codes(_machine({}, {}, pairs={(0, 1): facts}))
    assert [one for one in found if one.startswith("p2p")] == ([code] if code else [])


def test_a_machine_without_tree_is_a_virtual_one_or_its_firmware_is_silent() -> None:
    """Rule: SYS between GPUs of one NUMA node is no distance but a hidden tree.

    A table cannot tell a virtual machine from firmware that places no slots, so both are named.
    No GPU is then called far from a NIC.
    """
    pairs: dict[tuple[int, int], Facts] = {(0, 1): {"level": "SYS"}}
    for homes, expected in (
        (("0", "0"), "hidden-tree"),
        (("0-1", "0-1"), "hidden-tree"),
        (("0", "1"), "far-from-nic"),
    ):
        machine = _machine(*({"numa_affinity": home} for home in homes), pairs=pairs)
        assert set(_codes(_with_nic(machine, ("SYS", "SYS")))) == {expected}
        if expected == "hidden-tree":
            (found,) = check(machine)
            assert f"affinity {homes[0]}: a virtual machine" in found.evidence
            assert "or firmware" in found.evidence and "BIOS" in found.remedy


@pytest.mark.parametrize(
    ("levels", "far"),
    [(("PIX", "PIX"), ()), (("PHB", "PHB"), ()), (("PIX", "NODE"), ("GPU1",)), (("PIX", "PXB"), ()),
     (("PIX", "SYS"), ("GPU1",)), (("SYS", "SYS"), ("GPU0", "GPU1"))],
)  # fmt: skip
def test_far_means_farther_than_it_has_to_be(levels: tuple[str, str], far: tuple[str, ...]) -> None:
    """Rule: a GPU is far if its nearest NIC is on another socket, or others have one nearer."""
    assert _codes(_with_nic(_machine({}, {}), levels)).get("far-from-nic", ()) == far


def test_findings_come_in_order_of_harm() -> None:
    """Rule: what breaks jobs comes before what slows them, and the order never changes."""
    topology = _machine(
        {"ecc_uncorrected": 1, "clock_memory_max_hz": 2e9},
        {"nvlink_errors": 1, "clock_memory_max_hz": 1.9e9},
    )
    found = check(topology)
    assert [f.code for f in found] == ["ecc-uncorrected", "memory-clock-differs", "nvlink-errors"]
    assert check(topology) == found
    assert all(f.summary and f.evidence and f.remedy and 0 < f.harm <= 1 for f in found)


def test_the_field_reports_clocks_are_told_with_their_cost() -> None:
    """Rule: 1.7715 against 1.6830 GHz is 5 % lower, and up to 15 % of training throughput."""
    (finding,) = check(
        _machine({"clock_memory_max_hz": 1.7715e9}, {"clock_memory_max_hz": 1.683e9})
    )
    assert "5.0%" in finding.summary
    assert "15%" in finding.summary
    assert "1.6830 GHz: GPU1; 1.7715 GHz: GPU0" in finding.evidence


def test_many_pairs_are_counted() -> None:
    """Rule: of more than a dozen pairs a finding names the GPUs, and counts."""
    pairs: dict[tuple[int, int], Facts] = {
        (a, b): {"p2p_read": "NS"} for a in range(8) for b in range(8) if a != b
    }
    (found,) = check(_machine(*({} for _ in range(8)), pairs=pairs))
    assert found.subjects == tuple(f"GPU{n}" for n in range(8))
    assert "28 pairs" in found.evidence


@pytest.mark.parametrize(
    ("facts", "model", "codes"),
    [
        ({"level": "PIX", "bandwidth": 0.8e9}, "GeForce GTX 1070", {"slow-link"}),
        ({"level": "PIX", "bandwidth": 7e9}, "GeForce GTX 1070", set()),
        ({"level": "PIX", "bandwidth": 7e9}, "NVIDIA L40S", {"slow-link"}),  # gen4, by its model
        ({"level": "PIX", "nvlinks": 4, "bandwidth": 30e9}, "M", {"slow-link"}),
        ({"level": "PIX", "nvlinks": 4, "bandwidth": 70e9}, "M", set()),
        # What goes through the host's memory may take twice as long.
        ({"level": "SYS", "p2p_access": False, "bandwidth": 3e9}, "GeForce GTX 1070", set()),
        ({"level": "SYS", "p2p_access": False, "bandwidth": 2e9}, "M", {"slow-link"}),
    ],
)
def test_measured_below_the_class_of_the_link(facts: Facts, model: str, codes: set[str]) -> None:
    """Rule: less than half of what sources or the published rates of a model promise is found."""
    pairs = {(0, 1): facts, (1, 0): facts}
    found = check(_machine({}, {}, pairs=pairs, model=model))
    assert {f.code for f in found} == codes
    for one in found:
        assert "GB/s measured in 2 directions" in one.evidence and "expected" in one.evidence


@pytest.mark.parametrize("stated", [True, False])
def test_a_pair_below_its_likes(stated: bool) -> None:
    """Rule: one pair at two thirds of what the others of its class measured is named.

    Where no source says what connects pairs, they are not said to be of one class.
    """
    facts: Facts = {"level": "PIX"} if stated else {}
    pairs: dict[tuple[int, int], Facts] = {
        (a, b): facts | {"bandwidth": 8e9 if {a, b} == {1, 2} else 12e9}
        for a in range(4) for b in range(4) if a != b
    }  # fmt: skip
    found = check(_machine(*({} for _ in range(4)), pairs=pairs))
    assert {f.code for f in found} == {"pair-slow"}
    assert set(found[0].subjects) == {"GPU1-GPU2", "GPU2-GPU1"}
    assert ("of their class" in found[0].summary) == stated == ("(PIX)" in found[0].evidence)
    assert ("perhaps by design" in found[0].summary) == ("topo -m" in found[0].remedy) != stated


def test_management_ports_are_nobodys_nic() -> None:
    """Rule: a port below 10 Gbit/s has no findings and is not what GPUs are far from."""
    slow: Facts = {"net_rate": 125e6, "pcie_width": 1, "pcie_width_max": 4}
    for facts, expected in (
        (slow, set()),
        (slow | {"net_rate": 12.5e9}, {"pcie-width", "far-from-nic"}),
    ):
        machine = _with_nic(_machine({}, {}), ("SYS", "SYS"), **facts)
        assert set(_codes(machine)) == expected


@pytest.mark.parametrize(
    ("name", "gen", "nvlinks"),
    [
        ("Tesla V100-SXM2-16GB", 3, 6),
        ("NVIDIA A100-SXM4-80GB", 4, 12),
        ("NVIDIA A100 80GB PCIe", 4, 0),
        ("NVIDIA H100 80GB HBM3", 5, 18),
        ("NVIDIA H100 80GB HBM2e", 5, 0),  # the PCIe card
        ("NVIDIA H100 PCIe", 5, 0),
        ("NVIDIA H100 NVL", 5, 0),
        ("NVIDIA H200", 5, 18),
        ("NVIDIA H200 NVL", 5, 0),
        ("NVIDIA H800", 5, 8),
        ("NVIDIA GB200", 5, 18),
        ("NVIDIA L40S", 4, 0),
        ("NVIDIA GeForce RTX 3080", 4, 0),
        ("GeForce GTX 1070 Ti", 3, 0),
    ],
)
def test_published_rates_go_by_the_drivers_name(name: str, gen: int, nvlinks: int) -> None:
    """Rule: boards of SXM have links to miss, cards with an optional bridge have none."""
    found = published(name)
    assert found is not None and (found.pcie_gen, found.nvlinks) == (gen, nvlinks)
    assert published("AMD Instinct MI300X") is None and published(None) is None


def test_cards_of_eight_lanes_are_not_held_against_sixteen() -> None:
    """Rule: a full copy of a card with x8 is no slow link; the same rate at x16 is one."""
    codes = {}
    for name in ("NVIDIA RTX 2000 Ada Generation", "NVIDIA RTX A2000"):
        codes[name] = set(_codes(_machine({"model": name, "host_to_device": 11e9})))
    assert list(codes.values()) == [set(), {"slow-link"}]


@pytest.mark.parametrize(("switched", "found"), [("NV18", ("GPU2",)), ("NV2", ())])
def test_a_gpu_that_is_off_the_nvswitch_of_the_others(
    switched: str, found: tuple[str, ...]
) -> None:
    """Rule: in a matrix alone a GPU without NVLink is found where the others share a switch.

    GPUs that are bridged directly need not all be. Without models the finding says what else it
    may be.
    """
    rows = ["\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity"]
    for a in range(4):
        cells = [" X " if a == b else "SYS" if 2 in (a, b) else switched for b in range(4)]
        rows.append("\t".join([f"GPU{a}", *cells, "0-15", "0"]))
    codes = _codes(topology := gather.parse("\n".join(rows)))
    assert codes.get("nvlink-down", ()) == found
    assert all("none by design" in one.evidence for one in check(topology))


@pytest.mark.parametrize(
    ("line", "expected"), [("", True), ("/proc/cpuinfo/hypervisor:yes\n", False)]
)
def test_nobody_is_told_to_reseat_a_card_in_a_guest(line: str, expected: bool) -> None:
    """Rule: on a virtual machine lanes below a card's are its provider's choice, and no finding."""
    card = "/sys/devices/pci0000:00/0000:00:05.0"
    facts = {
        "class": "0x030200",
        "vendor": "0x10de",
        "current_link_width": "8",
        "max_link_width": "16",
    }
    text = "".join(f"{card}/{name}:{value}\n" for name, value in facts.items())
    topology = sysfs.parse(text + "/proc/cpuinfo/model:143\n" + line)
    assert ("pcie-width" in _codes(topology)) == expected


def test_a_driver_that_does_not_answer_is_a_finding() -> None:
    """Rule: NVIDIA devices in sysfs or /dev of which the driver says nothing are not passed."""
    on_bus, none = sysfs.parse(texts.SYSFS), Topology((), sources=("sysfs",))
    (finding,) = driver_down(on_bus, [], ["NVML does not start"])
    assert finding.subjects == ("GPU0", "GPU1") and "NVML does not start" in finding.evidence
    (finding,) = driver_down(none, [Path("/dev/nvidia1"), Path("/dev/nvidia0")], [])
    assert "/dev/nvidia0 exists" in finding.evidence
    driver = smi_xml.parse(texts.SMI_XML)
    assert not driver_down(none, [], []) and not driver_down(driver, [Path("/dev/nvidia0")], [])


def test_another_number_of_devices_is_a_finding() -> None:
    """Rule: fewer or more than asked for; a GPU on the bus that the driver lost is not counted.

    The devices are named; too many have another remedy than too few.
    """
    driver, bus = smi_xml.parse(texts.SMI_XML), sysfs.parse(texts.SYSFS)
    assert (len(driver.gpus), len(bus.gpus), len(bus.nics)) == (2, 2, 1)
    assert not miscounted(driver, 2, None) and not miscounted(bus, 2, 1)
    gpu, nic = miscounted(bus, 1, 3)
    assert (gpu.code, nic.code) == ("gpu-count", "nic-count")
    assert "Xid" not in gpu.remedy and "expect --gpus 2" in gpu.remedy
    assert "Xid" in miscounted(bus, 3, None)[0].remedy
    assert "Xid" not in nic.remedy and "switch" in nic.remedy
    assert bus.gpus[0].id in gpu.evidence and str(bus.gpus[0].busid) in gpu.evidence
    lost = merge([driver, sysfs.parse(texts.SYSFS.replace("83:00.0", "84:00.0"))])
    assert len(lost.gpus) == 3
    (finding,) = miscounted(lost, 3, None)
    assert finding.summary == "2 GPUs instead of 3"
    assert finding in check(lost, [finding])
