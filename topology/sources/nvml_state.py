"""The current state of a GPU by NVML: a few quick queries, repeated while it works."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from busbar.errors import ProbeError
from topology.model.busid import canonical
from topology.sources.nvml_ask import CALLS, NAME, opened


@dataclass(frozen=True)
class State:
    """The state of a GPU at one moment; None where the GPU does not answer.

    ``at``: seconds of a clock that only goes forward. ``energy_j`` is a counter that drivers bring
    up to date every 20 to 100 ms; ``throttle`` names what slows the clocks, idleness not among it.
    """

    at: float
    clock_sm_hz: float | None = None
    clock_memory_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    throttle: tuple[str, ...] | None = None


_CALLS = tuple(call for call in CALLS if call[0] in State.__dataclass_fields__)


class Gauge:
    """Reads the state of a GPU, from any thread. NVML stays open until `close`."""

    def __init__(self, library: Any, handle: Any, said: dict[str, str]) -> None:
        self._library, self._handle = library, handle
        # A refused query is not repeated: it costs time and the answer stays the same.
        self._calls = [call for call in _CALLS if hasattr(library, call[1])]
        self.busid, self.uuid, self.name = said["busid"], said["uuid"], said["name"]

    def look(self) -> State:
        """The GPU's state now; some 100 microseconds."""
        found: dict[str, Any] = {}
        for call in self._calls:
            fact, name, arguments, make = call
            try:
                found[fact] = make(getattr(self._library, name)(self._handle, *arguments))
            except self._library.NVMLError:
                # Another thread may have found the same, at the same time.
                self._calls = [other for other in self._calls if other is not call]
        return State(time.monotonic(), **found)

    def close(self) -> None:
        """End the use of NVML."""
        self._library.nvmlShutdown()


def gauge(busid: str | None, uuid: str | None) -> Gauge:
    """The GPU with that PCI address, or else that UUID; either may be None.

    Raises ProbeError without nvidia-ml-py or driver, or when there is no such GPU.
    """
    library = opened()
    try:
        wanted = canonical(busid or "")
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            said = {
                "busid": canonical(str(library.nvmlDeviceGetPciInfo(handle).busId)) or "",
                "uuid": str(library.nvmlDeviceGetUUID(handle)),
                "name": str(library.nvmlDeviceGetName(handle)),
            }
            if said["busid"] == wanted if wanted else said["uuid"] == uuid:
                return Gauge(library, handle, said)
    except library.NVMLError as error:
        library.nvmlShutdown()
        raise ProbeError(NAME, f"no state of GPU {busid or uuid}: {error}") from None
    library.nvmlShutdown()
    raise ProbeError(NAME, f"no GPU {busid or uuid} among those that NVML lists")
