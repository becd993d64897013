"""How far the ranks of a run are, told over TCP: MPI takes no part, so any thread may ask.

Rank 0 listens; its addresses and a token go to the others when the run begins, by the world. Ranks
of other hosts try the addresses then and keep the first that answers, so that a rank whose link is
lost later does not go round by another network. Otherwise nobody connects until a rank has made no
progress for a while: then its watching thread tells rank 0 its row and iteration, and learns that
rank 0 is there. A message is a rank's three numbers and their HMAC under the token, so that nobody
else can speak for a rank.
"""

from __future__ import annotations

import fcntl
import hmac
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from secrets import token_bytes

from collectives.execution.world import State, World

_MESSAGE = struct.Struct("!4q")  # rank, and its state
_DIGEST = 32
_LENGTH = _MESSAGE.size + _DIGEST
_HERE = b"\x01"  # rank 0's answer
_BACKLOG = 4096
# Connections that are open at a time, at most; more wait to be accepted.
_MOST_CALLERS = 256
# Of a host with more addresses the first are tried.
_MOST_ADDRESSES = 8
_SIOCGIFADDR = 0x8915
# Seconds to connect within, when a run begins.
_CONNECT_S = 1.0


class RankStates:
    """One rank's end. All ranks of the world make one together; rank 0's has a `listener`."""

    def __init__(self, world: World) -> None:
        self._rank, self._size = world.rank, world.size
        self.listener: socket.socket | None = None
        self._callers: dict[socket.socket, bytes] = {}
        everyone: list[object] = []
        if world.rank == 0:
            several = max(world.nodes) > 0
            token = token_bytes(_DIGEST)
            self.listener = _listener("" if several else "127.0.0.1")
            addresses = list(_addresses()) if several else ["127.0.0.1"]
            everyone = [addresses[:_MOST_ADDRESSES], self.listener.getsockname()[1], token.hex()]
        addresses, self._port, secret = world.broadcast(everyone)
        self._addresses: Sequence[str] = addresses
        self._token = bytes.fromhex(secret)
        #: Rank 0's address as this rank reaches it; empty where it does not, or is rank 0.
        self.address = "" if world.rank == 0 else self._reached()

    @property
    def where(self) -> str:
        """Where rank 0 listens, for messages."""
        return f"{' or '.join(self._addresses)} port {self._port}"

    def _reached(self) -> str:
        """The first of rank 0's addresses that can be connected to; empty where none can."""
        for address in self._addresses:
            with suppress(OSError):
                socket.create_connection((address, self._port), _CONNECT_S).close()
                return address
        return ""

    # -- rank 0

    def ends(self) -> list[socket.socket]:
        """What rank 0 waits for, for ``select``."""
        return [] if self.listener is None else [self.listener, *self._callers]

    def hear(self, ready: Sequence[object]) -> dict[int, State]:
        """Take what ranks tell on the ends that are ``ready``, and answer; their states by rank."""
        received: dict[int, State] = {}
        for end in [one for one in self._callers if one in ready]:
            try:
                data = self._callers[end] + end.recv(_LENGTH - len(self._callers[end]))
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if len(data) == _LENGTH:
                message = self._read(data)
                if message is not None:
                    received[message[0]] = message[1]
                    with suppress(OSError):
                        end.send(_HERE)
            elif len(data) > len(self._callers[end]):
                self._callers[end] = data
                continue
            del self._callers[end]
            end.close()
        if self.listener is not None and self.listener in ready:
            self._accept(self.listener)
        return received

    def _accept(self, listener: socket.socket) -> None:
        if len(self._callers) == _MOST_CALLERS:  # who has said nothing for the longest time
            first = next(iter(self._callers))
            del self._callers[first]
            first.close()
        with suppress(OSError):  # none is left, or we have no descriptor for it
            while len(self._callers) < _MOST_CALLERS:
                end, _ = listener.accept()
                end.setblocking(False)
                self._callers[end] = b""

    def _read(self, data: bytes) -> tuple[int, State] | None:
        """The rank and state of a message; None where it is none of a rank of ours."""
        numbers, digest = data[: _MESSAGE.size], data[_MESSAGE.size :]
        if not hmac.compare_digest(digest, self._digest(numbers)):
            return None
        rank, *state = _MESSAGE.unpack(numbers)
        return (rank, State(*state)) if 0 < rank < self._size else None

    def _digest(self, numbers: bytes) -> bytes:
        return hmac.digest(self._token, numbers, "sha256")

    # -- the others

    def tell(self, state: State, seconds: float) -> bool:
        """Send this rank's state to rank 0. Returns whether it answers within ``seconds``."""
        numbers = _MESSAGE.pack(self._rank, *state)
        try:
            with socket.create_connection((self.address, self._port), seconds) as end:
                end.sendall(numbers + self._digest(numbers))
                return end.recv(1) == _HERE
        except OSError:
            return False

    def close(self) -> None:
        """Listen no more."""
        for end in self.ends():
            end.close()
        self._callers, self.listener = {}, None


def _listener(address: str) -> socket.socket:
    """A listening socket on a free port of an address, or of all addresses of this host."""
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        listener = socket.create_server((address, 0), backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _addresses(inet6: Path = Path("/proc/net/if_inet6")) -> Iterator[str]:
    """The addresses of this host's interfaces that other hosts may reach, IPv4 first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has none
                reply = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                address = ip_address(reply[20:24])
                if not address.is_loopback:
                    yield str(address)
    with suppress(OSError):
        for line in inet6.read_text().splitlines():
            wide = IPv6Address(bytes.fromhex(line.split()[0]))
            if not (wide.is_loopback or wide.is_link_local):
                yield str(wide)
