"""The plan of an emulated network: hosts, racks, links and their rates. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from busbar.errors import Unsupported
from busbar.units import format_link_rate

#: Addresses are 10.1.0.1 to 10.1.0.250.
MOST_HOSTS = 250
# The depth of a link's token bucket: a millisecond of its rate, at least two frames. A deeper
# bucket lets whole messages pass at the speed of memory.
_BURST_S = 1e-3
# Bytes that a port queues before it drops packets: TCP's windows fit, so the fabric is lossless.
_BUFFER = 1 << 26


@dataclass(frozen=True)
class Cable:
    """A full-duplex link: its device in the switches' namespace, and bytes/s in each direction.

    ``up``: from its lower end, which is a host or a rack's switch; ``down``: towards it. ``host``:
    the number of the host at its lower end; None for the uplink of a rack's switch.
    """

    device: str
    up: float
    down: float
    rack: int
    host: int | None = None

    @property
    def rates(self) -> str:
        """The rates as text: one number if both directions are equal."""
        if self.up == self.down:
            return f"{format_link_rate(self.up)} each way"
        return f"{format_link_rate(self.up)} up, {format_link_rate(self.down)} down"


@dataclass(frozen=True)
class Network:
    """Hosts on one switch, or in racks whose switches share a spine.

    ``rate``: bytes/s of a host's link, each way. ``per_rack``: hosts on a switch, 0 for all.
    ``taper``: the sum of a rack's host rates divided by its uplink's rate. ``slow``: bytes/s of
    single hosts' links, each way; ``slow_out`` and ``slow_in``: of one direction only, as the host
    sees it. ``uplinks``: bytes/s of single racks' uplinks. ``pairs``: the most bytes/s, each way,
    between two hosts (lower number first). ``latency``: seconds added to what a host sends.
    ``loss``: the fraction of packets that are lost. ``buffer``: bytes that a port queues before it
    drops packets.
    """

    hosts: int
    rate: float
    per_rack: int = 0
    taper: float = 1.0
    slow: Mapping[int, float] = field(default_factory=dict)
    slow_out: Mapping[int, float] = field(default_factory=dict)
    slow_in: Mapping[int, float] = field(default_factory=dict)
    uplinks: Mapping[int, float] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    latency: float = 0.0
    loss: float = 0.0
    mtu: int = 9000
    buffer: int = _BUFFER

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise Unsupported(f"{self.hosts} hosts; a cluster has 1 to {MOST_HOSTS}")
        if self.per_rack and self.hosts % self.per_rack:
            raise Unsupported(f"{self.hosts} hosts do not fill racks of {self.per_rack}")
        for host in {*self.slow, *self.slow_out, *self.slow_in}:
            self.check(host, "--slow")
        for host in {host for pair in self.pairs for host in pair}:
            self.check(host, "--pair")
        if self.uplinks and self.racks == 1:
            raise Unsupported("--uplink: one switch has no uplink; give --racks")
        for rack in self.uplinks:
            if not 0 <= rack < self.racks:
                raise Unsupported(f"--uplink {rack}: racks are 0 to {self.racks - 1}")
        if self.pairs and (self.latency or self.loss):
            raise Unsupported("--pair does not go with --latency or --loss")

    def check(self, host: int, option: str) -> None:
        """Raise Unsupported if there is no such host; ``option`` is named in the error."""
        if not 0 <= host < self.hosts:
            raise Unsupported(f"{option} {host}: hosts are 0 to {self.hosts - 1}")

    @property
    def racks(self) -> int:
        """The number of switches that have hosts."""
        return self.hosts // self.per_rack if self.per_rack else 1

    def rack(self, host: int) -> int:
        """The rack of a host."""
        return host // self.per_rack if self.per_rack else 0

    def limits(self, host: int) -> dict[int, float]:
        """The hosts to which ``pairs`` limits the rate, with bytes/s."""
        return {sum(pair) - host: rate for pair, rate in self.pairs.items() if host in pair}

    def uplink(self, rack: int) -> float:
        """Bytes/s between a rack's switch and the spine, each way."""
        return self.uplinks.get(rack, self.per_rack * self.rate / self.taper)

    def burst(self, rate: float) -> int:
        """Bytes that a link of this rate sends at once after a pause."""
        return max(2 * self.mtu, round(rate * _BURST_S))

    @staticmethod
    def name(host: int) -> str:
        """The name of a host, of its namespaces, and of the device of its switch port."""
        return f"host{host}"

    @property
    def lossless(self) -> bool:
        """True if ports can queue all that TCP has in flight, and drop nothing."""
        return self.buffer >= _BUFFER and not self.loss

    @staticmethod
    def address(host: int) -> str:
        """The address of a host on its shaped link."""
        return f"10.1.0.{host + 1}"

    @staticmethod
    def control(host: int) -> str:
        """The address of a host on the network of launchers, which has no rate limit."""
        return f"10.2.0.{host + 1}"

    @property
    def port_rate(self) -> float | None:
        """Bytes/s of every host's port, each way; None if anything else limits what hosts send."""
        rates = {rate for cable in self.cables() for rate in (cable.up, cable.down)}
        alone = self.racks == 1 and not self.pairs and self.lossless
        return rates.pop() if alone and len(rates) == 1 else None

    def leaf(self, rack: int) -> str:
        """The name of a rack's switch."""
        return f"leaf{rack}" if self.racks > 1 else "switch"

    def cables(self) -> list[Cable]:
        """All links with a rate limit: the hosts', then the racks'."""
        cables = []
        for host in range(self.hosts):
            rate = self.slow.get(host, self.rate)
            up, down = self.slow_out.get(host, rate), self.slow_in.get(host, rate)
            cables.append(Cable(self.name(host), up, down, self.rack(host), host))
        for rack in range(self.racks) if self.racks > 1 else ():
            cables.append(Cable(f"up{rack}", self.uplink(rack), self.uplink(rack), rack))
        return cables
