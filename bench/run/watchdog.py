"""A second thread in each rank: ends the run on a signal, and explains a row that hangs.

Python runs signal handlers in the main thread, between byte codes. A rank that waits inside MPI for
a dead peer runs none. So signals only wake this thread, which acts on them. If a row makes no
progress, the thread sends its rank's progress to rank 0 over a socket (`RankStates`), because MPI's
thread level allows only the measuring thread to call MPI. The one exception is MPI_Abort, at the
end of all ranks: it asks the launcher to end them and waits for nothing in MPI.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from secrets import token_bytes

from bench.launch import child
from bench.launch.child import SOFTLY
from bench.launch.control_socket import ControlSocket, Phase
from bench.launch.segments import Segments
from bench.run.environment import RunContext
from busbar.cpulist import listed
from busbar.errors import RankFailure
from busbar.host import boot
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Action
from collectives.execution.world import State, World

_MESSAGE = struct.Struct("!4q")  # rank, and its state
_DIGEST = 32
_LENGTH = _MESSAGE.size + _DIGEST
_HERE = b"\x01"  # rank 0's answer
_BACKLOG = 4096
# Most connections that are open at a time; more wait to be accepted.
_MOST_CALLERS = 256
# Most addresses of a host that are tried.
_MOST_ADDRESSES = 8
_SIOCGIFADDR = 0x8915
# Time limit of a connection at the start of a run, in seconds. TCP tries again after one second if
# the queue of rank 0's socket is full: older kernels let it have 128 connections.
_CONNECT_S = 1.5


class RankStates:
    """One rank's end of the sockets over which other ranks send their progress to rank 0.

    All ranks create one together. Rank 0 listens. Its addresses and a token are broadcast. Ranks on
    other hosts try the addresses at once and keep the first that answers, so that a rank that loses
    its link later does not use another network instead. After that, a rank connects only if it has
    made no progress for a while: it sends its row and iteration to rank 0, and learns whether rank
    0 answers. A message holds a rank's numbers and their HMAC with the token, so that no other
    process can send one.
    """

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
        #: The address at which this rank reaches rank 0; empty if it cannot, and on rank 0.
        self.address = "" if world.rank == 0 else self._reached()

    @property
    def where(self) -> str:
        """Rank 0's addresses and port, as text for messages."""
        return f"{' or '.join(self._addresses)} port {self._port}"

    def _reached(self) -> str:
        """The first of rank 0's addresses that accepts a connection; empty if none does."""
        for address in self._addresses:
            with suppress(OSError):
                socket.create_connection((address, self._port), _CONNECT_S).close()
                return address
        return ""

    # -- rank 0

    def ends(self) -> list[socket.socket]:
        """The sockets that rank 0 waits on, for ``select``."""
        return [] if self.listener is None else [self.listener, *self._callers]

    def hear(self, ready: Sequence[object]) -> dict[int, State]:
        """Receive states from ``ready`` sockets, and answer. Returns the states by rank."""
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
        if len(self._callers) == _MOST_CALLERS:  # drop the oldest connection without a message
            first = next(iter(self._callers))
            del self._callers[first]
            first.close()
        with suppress(OSError):  # no connection is left, or no file descriptor
            while len(self._callers) < _MOST_CALLERS:
                end, _ = listener.accept()
                end.setblocking(False)
                self._callers[end] = b""

    def _read(self, data: bytes) -> tuple[int, State] | None:
        """The rank and state of a message; None if the message is not from one of our ranks."""
        numbers, digest = data[: _MESSAGE.size], data[_MESSAGE.size :]
        if not hmac.compare_digest(digest, self._digest(numbers)):
            return None
        rank, *state = _MESSAGE.unpack(numbers)
        return (rank, State(*state)) if 0 < rank < self._size else None

    def _digest(self, numbers: bytes) -> bytes:
        return hmac.digest(self._token, numbers, "sha256")

    # -- the others

    def tell(self, state: State, seconds: float) -> bool:
        """Send this rank's state to rank 0. Returns True if rank 0 answers within ``seconds``."""
        numbers = _MESSAGE.pack(self._rank, *state)
        try:
            with socket.create_connection((self.address, self._port), seconds) as end:
                end.sendall(numbers + self._digest(numbers))
                return end.recv(1) == _HERE
        except OSError:
            return False

    def close(self) -> None:
        """Close all sockets."""
        for end in self.ends():
            end.close()
        self._callers, self.listener = {}, None


Readable = socket.socket | ControlSocket


def readable(ends: Sequence[Readable], seconds: float) -> list[Readable]:
    """Wait until some of the ends can be read, for ``seconds`` at most; returns those.

    select(2) takes no file descriptor above 1023, and rank 0 may have a connection to every rank.
    Raises OSError or ValueError for a closed end.
    """
    poll, by_number = select.poll(), {end.fileno(): end for end in ends}
    for number in by_number:
        poll.register(number, select.POLLIN)
    events = poll.poll(1000 * seconds)
    if any(event & select.POLLNVAL for _, event in events):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return [by_number[number] for number, _ in events]


def _listener(address: str) -> socket.socket:
    """A socket that listens on a free port of an address, or of all addresses if it is empty."""
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        listener = socket.create_server((address, 0), backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _addresses() -> Iterator[str]:
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
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            wide = IPv6Address(bytes.fromhex(line.split()[0]))
            if not (wide.is_loopback or wide.is_link_local):
                yield str(wide)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, SOFTLY)
# Seconds. A rank waits _ANSWER_S for rank 0's answer. Rank 0 waits for ranks that have not sent
# their state: half of the time-out, by which ranks may be late, but at least _ANSWER_S and at most
# _LATEST_S.
_ANSWER_S, _LATEST_S = 2.0, 5.0
# A rank without progress for the share _TELL of the time-out sends its state to rank 0, and again
# every _AGAIN_S seconds.
_TELL, _AGAIN_S = 0.5, 1.5
_POLL_S = 0.2
# Seconds between two progress messages to the process that started the rank.
_WORD_EVERY_S = 1.0
# Seconds that an interrupted rank waits for rank 0 to report.
_GRACE_S = 5.0
# The most ranks whose peers are named in the report of a stuck row, and late ranks or ranges.
_MOST_WAITS, _MOST_NAMED = 4, 16
# Seconds that a rank waits after a signal for the reason from the process that started it: if one
# rank exits, launchers send SIGTERM to the others.
_WORD_S = 0.5
# Time limit for the report of a run that is ended, in seconds.
_LAST_WORDS_S = 8.0


@contextmanager
def _caught_signals() -> Iterator[socket.socket]:
    """Turn signals that end a run into bytes on the socket that is yielded; main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())  # set first, reset last: no signal is lost
        handlers = {
            which: signal.signal(which, lambda *_: None)
            for which in SIGNALS
            # SIGHUP stays ignored under nohup.
            if which != signal.SIGHUP or signal.getsignal(which) is not signal.SIG_IGN
        }
        try:
            yield ours
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler or signal.SIG_DFL)
            signal.set_wakeup_fd(before)


def explain(states: Mapping[int, State], size: int) -> str:
    """A sentence on the ranks that had not arrived, from the states of the ranks that answered."""
    silent = [rank for rank in range(size) if rank not in states]
    front = max(state[:2] for state in states.values())
    behind = [rank for rank in sorted(states) if states[rank][:2] < front]
    if silent:  # ranks that are only behind wait for the silent ones
        return f"{_ranks(silent)} had not arrived and gave no answer at all"
    if behind:
        return f"{_ranks(behind)} had not arrived at iteration {front[1]}"
    waits = [
        f"rank {rank} waits for rank {state.waits_for}"
        for rank, state in sorted(states.items())
        if state.waits_for >= 0
    ]
    more = [f"{len(waits) - _MOST_WAITS} more wait"] if len(waits) > _MOST_WAITS else []
    who = ": " + ", ".join([*waits[:_MOST_WAITS], *more]) if waits else ""
    return f"all ranks are inside iteration {front[1]}; the exchange itself hangs{who}"


def _ranks(ranks: list[int]) -> str:
    """The ranks by number; of many their number, and the first ranges."""
    if len(ranks) <= _MOST_NAMED:
        return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    parts = listed(ranks).split(",")
    more = ", …" if len(parts) > _MOST_NAMED else ""
    return f"{len(ranks)} ranks ({', '.join(parts[:_MOST_NAMED])}{more})"


def end_all(world: MpiWorld, line: ControlSocket, status: int) -> None:
    """End all ranks, and remove this rank's shared-memory segments of MPI. Does not return.

    The caller has printed the reason. MPICH's line on MPI_Abort, which looks like a crash, is lost.
    """
    _forget_segments()
    line.leave(status)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    world.abort(status)


def _forget_segments() -> None:
    """Unlink MPI's segments of this rank now, as it may be killed before MPI removes them."""
    mine = Segments()
    mine.look(os.getpid())
    mine.remove(used=True)


class Watchdog:
    """One for each rank. Its thread calls ``end(reason, aloud)``, which reports on rank 0."""

    def __init__(
        self,
        world: World,
        timeout: float | None,
        end: Callable[[str, bool], None],
        line: ControlSocket,
        tick: Callable[[], None],
    ) -> None:
        """Start the thread. If created in the main thread, it also handles the process's signals.

        Before creation and after `close`, signals have their usual effect. ``tick`` is called
        several times a second, also during a long row.
        """
        self._world, self._timeout, self._end, self._tick = world, timeout, end, tick
        self._line = line
        self._ends = ExitStack()
        main = threading.current_thread() is threading.main_thread()
        self._signals = self._ends.enter_context(_caught_signals()) if main else None
        self._row, self._iteration = -1, -1
        # A counter of progress; the current action, and its number of iterations before.
        self._signs, self._lock = 0, threading.Lock()
        self._action: Action | None = None
        self._before = 0
        # The sockets between MPI's ranks; ranks that are threads of one process need none.
        sockets = timeout is not None and isinstance(world, MpiWorld)
        self._states = RankStates(world) if sockets else None
        #: True if the run was ended because a row made no progress.
        self.stuck = False
        self._explain: Callable[[Mapping[int, State], int], str] = explain
        # The last counters and their time; below, the time since which rank 0 has not answered.
        self._seen, self._since = (-1, 0), float("inf")
        self._next_word, self._next_tell, self._deaf = 0.0, 0.0, float("inf")
        self._over = threading.Event()
        line.stage(Phase.ROWS)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def row(self, what: str = "") -> None:
        """Begin a new row: its time-out starts now, and again whenever an iteration begins.

        ``what``: a description of the row, see `measuring`.
        """
        with self._lock:
            self._row, self._iteration, self._signs = self._row + 1, -1, self._signs + 1
        self._explain = explain
        self._world.states[self._world.rank] = State(self._row, self._iteration)
        self._line.send(row=self._row, what=what)

    def measuring(self, what: str) -> None:
        """Name what the row measures from now on, for the message on a rank that is lost in it."""
        self._line.send(what=what)

    def follow(self, action: Action | None) -> None:
        """Set the action whose count of iterations is progress; see `bench.run.rows.Bench`."""
        with self._lock:
            self._action = action
            self._before = 0 if action is None else action.begun()

    def explained(self, how: Callable[[Mapping[int, State], int], str]) -> None:
        """Until the next row, use ``how`` instead of `explain` to describe a hang."""
        self._explain = how

    def arrived(self, iteration: int) -> None:
        """Record that this rank begins an iteration, by number; warm-ups are −1.

        The watchdog tells a slow row from one that is stuck by it.
        """
        with self._lock:
            # A repeated number is no progress, except that of warm-ups, which are all -1.
            self._signs += iteration != self._iteration or iteration < 0
            self._iteration = iteration
            self._before = 0 if self._action is None else self._action.begun()
        self._world.states[self._world.rank] = State(self._row, iteration)

    def depart(self, status: int) -> None:
        """Exit this rank without MPI_Finalize, which would wait for ranks that have exited."""
        if isinstance(self._world, MpiWorld):
            _forget_segments()
        self._line.leave(status)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)

    def close(self) -> None:
        """Stop the thread at the end of the run, and restore the signal handlers."""
        self._line.stage(Phase.ENDING)
        self._over.set()
        self._thread.join(2 * _POLL_S + _ANSWER_S)
        if not self._thread.is_alive():
            self._ends.close()
            if self._states is not None:
                self._states.close()

    def _run(self) -> None:
        while not self._over.is_set():
            taken, word = self._taken()
            self._tick()
            if word is not None:
                self._told(word)
            elif taken in SIGNALS:
                self._signalled(signal.Signals(taken))
            elif self._timeout is not None and self._row >= 0:
                self._look(time.monotonic(), self._timeout)

    def _taken(self) -> tuple[int, str | None]:
        """Wait briefly. Returns a signal's number (0 if none), and a stop request if one came."""
        listening = list[Readable]()
        if self._signals is not None:
            listening.append(self._signals)
        if self._line.connected:
            listening.append(self._line)
        if self._states is not None:
            listening += self._states.ends()
        if not listening:
            self._over.wait(_POLL_S)
            return 0, None
        try:
            ready = readable(listening, _POLL_S)
        except (OSError, ValueError, AssertionError):  # sockets are closed: this rank exits
            return 0, None
        if self._states is not None:
            self._hear(ready)
        word = self._line.stop_request() if self._line in ready else None
        if self._signals is None or self._signals not in ready:
            return 0, word
        return self._signals.recv(1)[0], word

    # -- progress

    def _hear(self, ready: Sequence[object]) -> None:
        """Rank 0: read the states that other ranks have sent."""
        assert self._states is not None
        self._world.states.update(self._states.hear(ready))

    def _state(self) -> tuple[State, tuple[int, int]]:
        """The state of this rank, and two counters, one of which grows with every progress."""
        with self._lock:
            begun = 0 if self._action is None else self._action.begun()
            # `arrived` is called once for a batch, with its first iteration.
            more = max(0, begun - self._before - 1) if self._iteration >= 0 else 0
            waiting = None if self._action is None else self._action.waiting()
            state = State(self._row, self._iteration + more, -1 if waiting is None else waiting)
            return state, (self._signs, begun)

    def _look(self, now: float, timeout: float) -> None:
        """Check for progress. Without any, send the state to rank 0; after the time-out, end."""
        state, signs = self._state()
        if signs != self._seen:
            self._seen, self._since, self._next_tell = signs, now, now + _TELL * timeout
            self._deaf = float("inf")
            self._world.states[self._world.rank] = state
            if now >= self._next_word and self._line.connected:
                self._next_word = now + _WORD_EVERY_S
                self._line.send(row=state[0], signs=sum(signs))
            return
        if self._world.rank == 0:
            if now > self._since + timeout:
                self._stuck(timeout)
        elif self._states is not None and self._states.address and now > self._next_tell:
            if self._states.tell(state, _ANSWER_S):
                self._next_tell, self._deaf = now + _AGAIN_S, float("inf")
            elif now > self._since + timeout:
                self._unanswered(now, timeout)

    def _stuck(self, timeout: float) -> None:
        """On rank 0: collect the states of all ranks, and end the run with an explanation."""
        self.stuck = True
        size, states = self._world.size, self._world.states
        states[0] = self._state()[0]
        if self._states is not None:
            # Earlier states may be out of date. Ranks that have exited since send no new ones.
            for rank in [rank for rank in states if rank]:
                del states[rank]
            stop = time.monotonic() + min(_LATEST_S, max(_ANSWER_S, _TELL * timeout))
            while len(states) < size and (left := stop - time.monotonic()) > 0:
                self._hear(readable(self._states.ends(), left))
        known = dict(states)
        reason = f"{_late(timeout)}; {self._explain(known, size)}{self._unreached(known)}"
        self._leave(reason, 4)

    def _unreached(self, states: Mapping[int, State]) -> str:
        """A remark on hosts without any rank that could reach rank 0; empty if there are none."""
        nodes = self._world.nodes
        silent = sorted(set(nodes) - {nodes[rank] for rank in states})
        if not silent or self._states is None:
            return ""
        hosts = f"{len(silent)} host{'s' * (len(silent) > 1)}"
        return f" (no rank of {hosts} could reach rank 0 at {self._states.where})"

    def _unanswered(self, now: float, timeout: float) -> None:
        """On other ranks: end the run if rank 0 neither ends it nor answers."""
        self._deaf = min(self._deaf, now)
        if now > self._deaf + _GRACE_S:
            self.stuck = True
            if self._world.rank == 1:
                print(
                    f"busbar: {_late(timeout)}; rank 0 gave no answer", file=sys.stderr, flush=True
                )
            self._leave("", 4)

    def _signalled(self, which: signal.Signals) -> None:
        if self._line.connected and readable([self._line], _WORD_S):
            word = self._line.stop_request()
            if word is not None:
                self._told(word)
        # Rank 0 has probably received the signal too: it prints the report and ends all ranks.
        if self._world.rank != 0 and which != SOFTLY:
            self._line.send(signalled=int(which))
        name = "" if which == SOFTLY else f" by {which.name}"
        status = 128 + (signal.SIGINT if which == SOFTLY else which)
        self._leave(f"interrupted{name}", status, _GRACE_S)

    def _told(self, word: str) -> None:
        """End with the exit status and reason that the starting process has sent."""
        status, _, reason = word.partition(" ")
        if not status.isdigit():  # the starting process is gone, so this rank prints the reason
            self._leave(word, 4, _GRACE_S)
        self._leave(reason, int(status), _GRACE_S, aloud=False)  # the starting process prints it

    def _leave(self, reason: str, status: int, grace: float = 0.0, aloud: bool = True) -> None:
        """Report on rank 0 (other ranks sleep ``grace`` seconds), then end all. Never returns."""
        timer = threading.Timer(grace + _LAST_WORDS_S, os._exit, [status])
        timer.daemon = True
        timer.start()
        try:
            if isinstance(self._world, MpiWorld):
                _forget_segments()
            if self._world.rank == 0:
                self._end(reason, aloud)
            else:
                time.sleep(grace)
        finally:
            if isinstance(self._world, MpiWorld):
                end_all(self._world, self._line, status)
            os._exit(status)


def _late(timeout: float) -> str:
    return f"the row made no progress for {timeout:g} s (-T)"


class StoppedNeighbour:
    """Detects that another rank of this host is stopped (SIGSTOP), under a plain ``mpirun``.

    A plain ``mpirun`` does not report a stopped rank, and all other ranks wait for it for ever.
    Each rank watches the next one of its host: it reads one small file of /proc twice a second, in
    the watchdog's thread. All ranks create one together; `look` ends the run.
    """

    def __init__(self, opened: RunContext, end: Callable[[str, bool], None]) -> None:
        self._opened, self._end = opened, end
        self._look, self._rank, self._pid = child.StoppedProcesses(), -1, 0
        if not isinstance(opened.world, MpiWorld):
            return
        # A pid is valid only within its host and pid namespace.
        here = [boot(), _namespace()]
        ranks = opened.world.gather([here, os.getpid(), opened.line.connected])
        mine = [rank for rank, (where, _, _) in enumerate(ranks) if where == here]
        if len(mine) > 1 and here[1] and not any(started for _, _, started in ranks):
            self._rank = mine[(mine.index(opened.world.rank) + 1) % len(mine)]
            self._pid = ranks[self._rank][1]

    def beside(self, tick: Callable[[], None]) -> Callable[[], None]:
        """A function that calls ``tick``, and then `look` if there is a rank to watch."""

        def both() -> None:
            tick()
            self.look()

        return both if self._pid else tick

    def look(self) -> None:
        """End the run if the watched rank is stopped. May be called often, by one thread only."""
        if self._look.overdue([self._pid]):
            self._over(f"rank {self._rank} (pid {self._pid}) is stopped")

    def _over(self, reason: str) -> None:
        world, line, status = self._opened.world, self._opened.line, RankFailure.exit_status
        assert isinstance(world, MpiWorld)
        timer = threading.Timer(_LAST_WORDS_S, os._exit, [status])
        timer.daemon = True
        timer.start()
        try:
            if world.rank == 0:
                self._end(reason, True)
            else:
                print(f"busbar: {reason}", file=sys.stderr, flush=True)
        finally:
            end_all(world, line, status)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""
