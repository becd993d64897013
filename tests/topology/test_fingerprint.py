"""A machine's fingerprint: what it is made of counts, what it is doing does not."""

from dataclasses import replace

from topology.model.topology import Device, Fact, Kind, Topology, fingerprint

from .conftest import Loaded


def _with(device: Device, name: str, value: str | int) -> Device:
    return replace(device, facts=(Fact(name, value, "test"), *device.facts))


def test_state_does_not_count(machine: Loaded) -> None:
    """Rule: clocks, serial numbers, temperatures and processes leave the fingerprint as it is."""
    _, topology = machine
    busy = [
        replace(
            _with(_with(d, "clock_sm_hz", 1), "temperature_c", 99), uuid="GPU-another", name="x"
        )
        for d in topology.devices
    ]
    assert fingerprint(replace(topology, devices=tuple(busy))) == fingerprint(topology)


def test_what_it_is_made_of_counts(machine: Loaded) -> None:
    """Rule: a GPU less, another model, another wiring is another machine."""
    _, topology = machine
    seen = {fingerprint(topology), fingerprint(Topology())}
    changed = [_with(d, "model", "another") if d.kind is Kind.GPU else d for d in topology.devices]
    seen.add(fingerprint(replace(topology, devices=tuple(changed))))
    more = Device("GPU99", Kind.GPU, 99, busid="0000:ff:00.0")
    seen.add(fingerprint(replace(topology, devices=(*topology.devices, more))))
    if topology.links:
        seen.add(fingerprint(replace(topology, links=topology.links[1:])))
    assert len(seen) == 4 + bool(topology.links)
