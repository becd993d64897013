"""Facts about a host, from files of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from busbar import host
from busbar.host import core_share

V1 = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("cgroup", "files", "share"),
    [
        ("0::/a/b\n", {}, 64.0),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 64.0),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/host/path\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "nonsense\n"}, 64.0),
        (
            "4:cpu,cpuacct:/u\n0::/\n",
            {f"{V1}/u/cpu.cfs_quota_us": "200000\n", f"{V1}/u/cpu.cfs_period_us": "100000\n"},
            2.0,
        ),
        (
            "4:cpu,cpuacct:/u\n",
            {f"{V1}/u/cpu.cfs_quota_us": "-1\n", f"{V1}/u/cpu.cfs_period_us": "100000\n"},
            64.0,
        ),
        ("", {}, 64.0),
    ],
)
def test_a_quota_counts_as_fewer_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    files: Mapping[str, str],
    share: float,
) -> None:
    """Rule: a container or a login session that may use two cores of 64 counts as two."""
    monkeypatch.setattr(host, "cores", lambda: list(range(64)))
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert core_share(tmp_path) == share
