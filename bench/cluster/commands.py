"""The commands that build a planned network, as lists of words. Pure; they run in new namespaces.

Nothing has a name outside these namespaces: `/run` and `/dev/shm` are the cluster's own file
systems, and its network namespaces are files in `/run`. When its first process ends, the kernel
removes everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.cluster.faults import NO_FAULTS, Faults
from bench.cluster.network import Cable, Network

#: The host of launchers: it is connected to every host's control network, but to no shaped link.
HEAD = "head"
_HEAD_ADDRESS = "10.2.0.254"
#: Replaces ssh: enters the host that is named.
ENTER = "/run/enter"
#: First on the PATH of commands in the cluster: `ssh` there is `ENTER`.
PROGRAMS = "/run/bin"
HOSTFILE = "/run/hostfile"

#: Bytes in a socket buffer; MPI counts them as sent.
SOCKET = 1 << 18

_KINDS = ("--net", "--mount", "--uts", "--ipc", "--pid")
_SCRIPT = """#!/bin/sh
# In ssh's place: options, a host's name, and what its shell is to run.
while [ "${1#-}" != "$1" ]; do
    case $1 in -[BbcDEeFIiJLlmOopQRSWw]) shift ;; esac
    shift
done
host=${1#*@}
shift
if [ ! -e "/run/netns/$host" ]; then
    echo "ssh: Could not resolve hostname $host: Name or service not known" >&2
    exit 255
fi
inside=
[ ! -e "/run/faults/$host" ] || . "/run/faults/$host"
exec nsenter --uts=/run/uts/$host --ipc=/run/ipc/$host ip netns exec $host sh -c "$inside$*"
"""
# A fabric has no slow start after a pause and little data in flight. MPI counts bytes in a socket
# buffer as sent, so the next step's messages would share the port with them. Every kernel has this
# congestion control. If other connections' bytes wait in a port, a probe for a lost tail (RFC 8985)
# and a timer of 200 ms take this for a loss, and data is sent again. So there are no probes, and
# the timer is longer than the queue of a port that drops nothing (see `_host`).
_TCP = (
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.tcp_early_retrans=0",
    "net.ipv4.tcp_rmem=4096 1048576 4194304",
    f"net.ipv4.tcp_wmem=4096 {SOCKET} {SOCKET}",
)


class Command(NamedTuple):
    """A command's words, and the text on its standard input."""

    words: tuple[str, ...]
    text: str = ""


def opening(user: bool) -> list[str]:
    """The command that opens a cluster's namespaces. ``user``: with a user namespace, unprivileged.

    Its process lives as long as its standard input is open, and everything in the cluster lives as
    long as this process.
    """
    as_root = ["--user", "--map-root-user"] if user else []
    return ["unshare", *as_root, *_KINDS, "--fork", "--kill-child", "--mount-proc", "cat"]


def inside(pid: int, user: bool) -> list[str]:
    """The prefix that runs a command in the namespaces of the process with this id."""
    as_root = ["--user", "--preserve-credentials"] if user else []
    return ["nsenter", f"--target={pid}", *as_root, *_KINDS, "--"]


def _words(line: str) -> Command:
    return Command(tuple(line.split()))


def _file(path: str, text: str, mode: str = "644") -> Command:
    return Command(("install", "-m", mode, "/dev/stdin", path), text)


def making(network: Network, ranks_per_host: int, faults: Faults = NO_FAULTS) -> Iterator[Command]:
    """The commands, in order, that build the network in open namespaces."""
    hosts = range(network.hosts)
    names = [network.name(host) for host in hosts]
    yield _words("mount -t tmpfs tmpfs /run")
    yield _words("mount -t tmpfs tmpfs /dev/shm")
    yield _words(f"mkdir /run/netns /run/uts /run/ipc /run/tmp /run/faults {PROGRAMS}")
    files = [f"/run/{kind}/{name}" for name in names for kind in ("netns", "uts", "ipc")]
    yield Command(("touch", *files))
    yield _file(ENTER, _SCRIPT, "755")
    yield _words(f"ln -s {ENTER} {PROGRAMS}/ssh")
    for host, script in faults.scripts().items():
        yield _file(f"/run/faults/{network.name(host)}", script)
    yield _file(HOSTFILE, "".join(f"{name}:{ranks_per_host}\n" for name in names))
    slots = f" slots={ranks_per_host}\n"
    yield _file(f"{HOSTFILE}.slots", "".join(name + slots for name in names))
    known = [f"{network.address(host)} {network.name(host)}\n" for host in hosts]
    yield _file("/run/hosts", f"127.0.0.1 localhost\n{_HEAD_ADDRESS} {HEAD}\n{''.join(known)}")
    yield _words("mount --bind /run/hosts /etc/hosts")
    yield _words(f"hostname {HEAD}")
    yield _words("ip link set lo up")
    switches = [network.leaf(rack) for rack in range(network.racks)]
    for switch in [*switches, *(["spine"] if network.racks > 1 else []), "control"]:
        yield _words(f"ip link add {switch} mtu {network.mtu} type bridge")
        yield _words(f"ip link set {switch} up")
    # Single packets, as on shaped links: `bench.cluster.cpu` estimates their CPU cost over this
    # network.
    yield _words("ip link set control gso_max_segs 1")
    yield _words(f"ip addr add {_HEAD_ADDRESS}/16 dev control")
    for cable in network.cables():
        yield from (
            _uplink(network, cable) if cable.host is None else _host(network, cable, cable.host)
        )


def _host(network: Network, cable: Cable, host: int) -> Iterator[Command]:
    """The commands that make a host with its two links; the shaped one is its eth0."""
    name, mtu = network.name(host), network.mtu
    spaces = f"--net=/run/netns/{name} --uts=/run/uts/{name} --ipc=/run/ipc/{name}"
    yield _words(f"unshare {spaces} hostname {name}")
    for near, far, switch, address in (
        (cable.device, "eth0", network.leaf(cable.rack), network.address(host)),
        (f"ctl{host}", "ctl0", "control", network.control(host)),
    ):
        yield _words(f"ip link add {near} mtu {mtu} type veth peer name {far} netns {name}")
        yield _words(f"ip link set {near} master {switch} up")
        yield _words(f"ip -n {name} link set {far} mtu {mtu} up")
        yield _words(f"ip -n {name} addr add {address}/16 dev {far}")
    yield _words(f"ip -n {name} link set lo up")
    if network.lossless:
        # TCP's least retransmission time to other hosts; see `_TCP`.
        yield _words(
            f"ip -n {name} route change 10.1.0.0/16 dev eth0 proto kernel scope link"
            f" src {network.address(host)} rto_min 2s"
        )
    yield Command((*f"ip netns exec {name} sysctl -q -w".split(), *_TCP))
    yield _shaped(network, "tc", cable.device, cable.down)
    yield _shaped(network, f"tc -n {name}", "eth0", cable.up)
    yield from _limited(network, host, cable.up)
    if network.latency or network.loss:
        delay = f" delay {network.latency * 1e6:g}us" if network.latency else ""
        loss = f" loss {network.loss * 100:g}%" if network.loss else ""
        below = f"tc -n {name} qdisc add dev eth0 parent 1:1 handle 10:"
        yield _words(f"{below} netem{delay}{loss} limit 100000")


def _uplink(network: Network, cable: Cable) -> Iterator[Command]:
    down, leaf = f"down{cable.rack}", network.leaf(cable.rack)
    yield _words(f"ip link add {cable.device} mtu {network.mtu} type veth peer name {down}")
    yield _words(f"ip link set {cable.device} mtu {network.mtu} master {leaf} up")
    yield _words(f"ip link set {down} mtu {network.mtu} master spine up")
    yield _shaped(network, "tc", cable.device, cable.up)
    yield _shaped(network, "tc", down, cable.down)


def _shaped(network: Network, tc: str, device: str, rate: float) -> Command:
    """Limit the rate of packets that leave a device, which is an end of a veth pair."""
    return _words(
        f"{tc} qdisc add dev {device} root handle 1: tbf rate {round(8 * rate)}bit"
        f" burst {network.burst(rate)} limit {network.buffer}"
    )


def _limited(network: Network, host: int, rate: float) -> Iterator[Command]:
    """Limit what a host sends to single others: an HTB class for each, below the port's bucket.

    ``rate``: bytes/s of the port. All other traffic is in a class of twice that rate, which does
    not limit it.
    """
    limits = {network.address(peer): limit for peer, limit in network.limits(host).items()}
    if not limits:
        return
    tc = f"tc -n {network.name(host)}"
    # HTB lets a packet of 64 KiB pass at once; the bucket above it splits longer packets.
    yield _words(f"ip -n {network.name(host)} link set eth0 gso_max_segs 1")
    yield _words(f"{tc} qdisc add dev eth0 parent 1:1 handle 2: htb default 1")
    for minor, (address, most) in enumerate([("", 2 * rate), *limits.items()], 1):
        depth = network.burst(most)
        yield _words(
            f"{tc} class add dev eth0 parent 2: classid 2:{minor} htb rate {round(8 * most)}bit"
            f" burst {depth} cburst {depth} quantum {network.mtu}"
        )
        yield _words(f"{tc} qdisc add dev eth0 parent 2:{minor} bfifo limit {network.buffer}")
        if address:
            yield _words(
                f"{tc} filter add dev eth0 parent 2: protocol ip u32 match ip dst {address}"
                f" flowid 2:{minor}"
            )


def raised(network: Network, host: int, up: bool) -> Command:
    """The command that takes a host's link down, or up again."""
    return _words(f"ip link set {network.name(host)} {'up' if up else 'down'}")
