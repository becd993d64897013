"""Parsers of options about links. Pure."""

from __future__ import annotations

import argparse
import math
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bench.cluster.faults import REFUSE, OtherFile, RankSignal, Shell, Variable
from busbar.units import BITS, SECONDS, parse_quantity

_MOST = 400e9
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"


class Racks(NamedTuple):
    """Racks of ``hosts`` hosts. ``taper``: a rack's total of host rates divided by its uplink's."""

    racks: int
    hosts: int
    taper: float


class Slow(NamedTuple):
    """A host's link and its bytes/s: each way, or only in the direction ``way``."""

    host: int
    rate: float
    way: Literal["", "out", "in"] = ""


class Skews(NamedTuple):
    """The largest clock offset of a host in seconds, and the largest drift in parts per million."""

    seconds: float
    ppm: float

    def of(self, names: Sequence[str], since: float) -> str:
        """The clock error of each host, for `bench.timing.clock`; the first host's clock is right.

        The others alternate between ahead and behind, fast and slow, with the largest errors last.
        ``since``: the true time at which the offsets hold.
        """
        shares = [(-1) ** n * n / max(1, len(names) - 1) for n in range(len(names))]
        return " ".join(
            f"{name}:{share * self.seconds:.6f}:{-share * self.ppm:.6f}:{since:.3f}"
            for name, share in zip(names, shares, strict=True)
        )


class Down(NamedTuple):
    """A host's link goes down after ``after`` seconds, and up again after ``lasting`` more."""

    host: int
    after: float
    lasting: float | None


#: A host's number, or its name as ``host3``.
_HOST = "(?:host)?([0-9]{1,4})"


def _refused(text: str, why: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text[:40]!r}{why}")


def rate(text: str) -> float:
    """Parse bytes/s from ``200Mbit``."""
    bits = parse_quantity(text.lower(), BITS)
    if bits is None or not 1e5 <= bits <= _MOST:
        raise _refused(text, " is no rate from 100Kbit to 400Gbit, such as 200Mbit")
    return bits / 8


def _time(text: str) -> float | None:
    return parse_quantity(text, SECONDS)


def latency(text: str) -> float:
    """Parse seconds from ``50us``."""
    seconds = _time(text)
    if seconds is None or not 0 < seconds <= 10:
        raise _refused(text, " is no delay up to 10s, such as 50us")
    return seconds


def loss(text: str) -> float:
    """Parse a fraction from ``0.1%``."""
    match = re.fullmatch(_NUMBER + "%", text)
    if match is None or not 0 < float(match[1]) < 100:
        raise _refused(text, " is no share of packets, such as 0.1%")
    return float(match[1]) / 100


def clocks(text: str) -> Skews:
    """Parse the largest errors of hosts' clocks from ``3s:100ppm``."""
    match = re.fullmatch(r"([^:]*):" + _NUMBER + "ppm", text)
    seconds = _time(match[1]) if match else None
    if match is None or seconds is None or seconds > 1e5 or float(match[2]) > 1e4:
        why = ": write TIME:PPM, at most 100000s and 10000ppm, such as 3s:100ppm"
        raise _refused(text, why)
    return Skews(seconds, float(match[2]))


def slow(text: str) -> Slow:
    """Parse a host's link from ``3:20Mbit``, ``3:20Mbit:out`` or ``3:20Mbit:in``."""
    match = re.fullmatch(_HOST + ":([^:]*)(?::(out|in))?", text)
    if match is None:
        raise _refused(text, ": write HOST:RATE[:out|:in], such as 3:20Mbit or 3:20Mbit:out")
    way: Any = match[3] or ""
    return Slow(int(match[1]), rate(match[2]), way)


def uplink(text: str) -> tuple[int, float]:
    """Parse a rack and its uplink's bytes/s from ``1:50Mbit``."""
    match = re.fullmatch("([0-9]{1,4}):(.*)", text)
    if match is None:
        raise _refused(text, ": write RACK:RATE, such as 1:50Mbit")
    return int(match[1]), rate(match[2])


def pair(text: str) -> tuple[tuple[int, int], float]:
    """Parse two hosts (lower number first) and the bytes/s between them from ``2-5:20Mbit``."""
    match = re.fullmatch(f"{_HOST}-{_HOST}:(.*)", text)
    if match is None or int(match[1]) == int(match[2]):
        raise _refused(text, ": write HOST-HOST:RATE of two hosts, such as 2-5:20Mbit")
    least, most = sorted((int(match[1]), int(match[2])))
    return (least, most), rate(match[3])


def racks(text: str) -> Racks:
    """Parse racks from ``4x4`` or ``4x4:taper=2``."""
    found = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})(?::taper=" + _NUMBER + ")?", text)
    if found is None or not (int(found[1]) > 1 and int(found[2])):
        why = ": write RACKSxHOSTS[:taper=T] with two racks or more, such as 4x4:taper=2"
        raise _refused(text, why)
    taper = float(found[3] or 1)
    if not 1 / 64 <= taper <= 64:
        raise _refused(text, ": a taper is from 1/64 to 64")
    return Racks(int(found[1]), int(found[2]), taper)


def down(text: str) -> Down:
    """Parse a link that goes down from ``5@2s``, or goes down and up from ``5@2s+500ms``."""
    found = re.fullmatch(_HOST + r"@([^+]*)(?:\+(.*))?", text)
    after = _time(found[2]) if found else None
    lasting = _time(found[3]) if found and found[3] is not None else None
    if found is None or after is None or (found[3] is not None and lasting is None):
        raise _refused(text, ": write HOST@TIME or HOST@TIME+TIME, such as 5@2s or 5@2s+500ms")
    return Down(int(found[1]), after, lasting)


def shell(text: str) -> Shell:
    """Parse a host's remote shell from ``3:5s``, ``3:hang`` or ``3:refuse``."""
    found = re.fullmatch(_HOST + ":(.*)", text)
    answers: dict[str, float | str] = {"hang": math.inf, REFUSE: REFUSE}
    answer = answers.get(found[2], _time(found[2])) if found else None
    if found is None or answer is None:
        raise _refused(text, ": write HOST:TIME, HOST:hang or HOST:refuse, such as 3:5s")
    return Shell(int(found[1]), answer)


def variable(text: str) -> Variable:
    """Parse a variable of a host from ``3:LD_PRELOAD=/tmp/wrong.so``."""
    found = re.fullmatch(_HOST + ":([A-Za-z_][A-Za-z0-9_]*)=([^\0]*)", text)
    if found is None:
        raise _refused(text, ": write HOST:NAME=VALUE, such as 3:LD_PRELOAD=/tmp/wrong.so")
    return Variable(int(found[1]), found[2], found[3])


def other_file(text: str) -> OtherFile:
    """Parse a file that replaces another on a host from ``3:/etc/os-release=/tmp/other``."""
    found = re.fullmatch(_HOST + ":([^=]+)=(.+)", text)
    if found is None:
        raise _refused(text, ": write HOST:PATH=FILE, such as 3:/etc/os-release=/tmp/other")
    for path in (Path(found[2]), Path(found[3])):
        if not path.exists():
            raise _refused(text, f": there is no {path}")
    return OtherFile(int(found[1]), Path(found[2]).absolute(), Path(found[3]))


def crash(text: str) -> RankSignal:
    """Parse a host whose ranks crash from ``3`` or ``3@2s``."""
    host, _, after = text.partition("@")
    return _signal(text, host, after or "0s", signal.SIGSEGV, "HOST or HOST@TIME, such as 3@2s")


def stop(text: str) -> RankSignal:
    """Parse a host whose ranks stop from ``3@2s``."""
    host, _, after = text.partition("@")
    return _signal(text, host, after, signal.SIGSTOP, "HOST@TIME, such as 3@2s")


def _signal(text: str, host: str, after: str, number: int, form: str) -> RankSignal:
    seconds = _time(after)
    match = re.fullmatch(_HOST, host)
    if match is None or seconds is None or text.endswith("@"):
        raise _refused(text, f": write {form}")
    return RankSignal(int(match[1]), seconds, number)
