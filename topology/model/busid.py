"""PCI bus ids in one canonical spelling, so that sources can be joined on them."""

from __future__ import annotations

import re

_BUSID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


def canonical(text: str) -> str | None:
    """Return a PCI bus id as ``dddd:bb:dd.f`` in lower case, or ``None`` if it is not one.

    NVML writes eight domain digits, sysfs four, CUDA leaves out the function and lspci the
    domain. Domains above ``ffff`` (VMD, Hyper-V) keep the digits they need. Device numbers end
    at ``1f``: PCI has five bits for them.
    """
    match = _BUSID.fullmatch(text.strip())
    if match is None or int(match["device"], 16) > 0x1F:
        return None
    domain = int(match["domain"] or "0", 16)
    bus, device = int(match["bus"], 16), int(match["device"], 16)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match['function'] or '0'}"


def order(busid: str) -> list[int]:
    """Return the sort key of a canonical bus id: domains differ in their number of digits."""
    return [int(part, 16) for part in busid.replace(".", ":").split(":")]


def slot(busid: str) -> str:
    """Return a canonical bus id without its function: what functions of one card share."""
    return busid.rpartition(".")[0]
