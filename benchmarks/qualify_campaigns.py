"""Campaigns of ``busbar qualify`` on the emulated cluster, with faults drawn by a seed.

    python benchmarks/qualify_campaigns.py run --from 0 --to 60 --out FILE
    python benchmarks/qualify_campaigns.py run --healthy --from 0 --to 20 --out FILE
    python benchmarks/qualify_campaigns.py show FILE

FILE: ``benchmarks/results/qualify-campaigns.jsonl``, or another file.

Campaign number n always has the same 0 to 3 faults of 16 hosts, links and uplinks; see `FAULTS`.
Campaigns that the file already has are skipped, so that a later run continues. Each line has the
code's version and the machine. ``--keep FOLDER`` keeps the run directories.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from busbar.host import cores, cpu_model
from busbar.installation import revision
from busbar.start import python

HOSTS, PER_RACK, RATE_MBIT, SEED = 16, 4, 100, 34
_CAMPAIGN_S = 400
HERE = Path(__file__).parent


class Fault(NamedTuple):
    """A fault: description, kind and subject as in verdicts, options, and states that detect it.

    ``share``: the fraction of the rate that is left; 0 for faults that do not slow.
    """

    what: str
    kind: str
    subject: tuple[str, ...]
    options: tuple[str, ...]
    states: tuple[str, ...]
    share: float = 0.0


def _name(host: int) -> str:
    return f"host{host}"


def _port(draw: random.Random, host: int, tools: Path) -> Fault:
    share, way = round(draw.uniform(0.5, 0.9), 2), draw.choice(["", ":in", ":out"])
    option = f"{host}:{share * RATE_MBIT:g}Mbit{way}"
    what = f"port at {share}{way.replace(':', ' ')}"
    return Fault(what, "host", (_name(host),), ("--slow", option), ("slow",), share)


_SILENT = ("unreachable", "hangs", "crashes")


def _down(draw: random.Random, host: int, tools: Path) -> Fault:
    at = draw.choice([0, draw.randint(15, 60)])
    return Fault("link down", "host", (_name(host),), ("--down", f"{host}@{at}s"), _SILENT)


def _shell(draw: random.Random, host: int, tools: Path) -> Fault:
    how = draw.choice(["hang", "refuse"])
    subject = (_name(host),)
    return Fault(f"shell {how}", "host", subject, ("--shell", f"{host}:{how}"), ("unreachable",))


def _late(draw: random.Random, host: int, tools: Path) -> Fault:
    # Nothing is wrong with its links and its results: it must only not be taken for a bad one.
    return Fault("shell 5 s", "", (_name(host),), ("--shell", f"{host}:5s"), ())


def _crash(draw: random.Random, host: int, tools: Path) -> Fault:
    return Fault("crash", "host", (_name(host),), ("--crash", f"{host}"), ("crashes",))


def _stop(draw: random.Random, host: int, tools: Path) -> Fault:
    options = ("--stop", f"{host}@{draw.randint(1, 6) * 500}ms")
    return Fault("rank stopped", "host", (_name(host),), options, ("hangs",))


def _version(draw: random.Random, host: int, tools: Path) -> Fault:
    spec = find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "version.py"
    other = tools / "version.py"
    other.write_text(path.read_text() + '\nversion = __version__ = "1.0.0"\n')
    options = ("--file", f"{host}:{path}={other}")
    return Fault("other version", "host", (_name(host),), options, ("different",))


def _wrong(draw: random.Random, host: int, tools: Path) -> Fault:
    library = tools / "wrong.so"
    words = ["mpicc", "-shared", "-fPIC", "-O1", "-o", str(library)]
    words[0] = str(Path(sys.prefix) / "bin" / "mpicc")
    subprocess.run([*words, str(HERE / "wrong_bytes.c"), "-ldl"], check=True)
    options = ("--env", f"{host}:LD_PRELOAD={library}")
    return Fault("wrong bytes", "host", (_name(host),), options, ("wrong",))


def _pair(draw: random.Random, host: int, tools: Path) -> Fault:
    share = round(draw.uniform(0.2, 0.7), 2)
    other = draw.choice([one for one in range(HOSTS) if one != host])
    option = f"{host}-{other}:{share * RATE_MBIT:g}Mbit"
    subject = (_name(host), _name(other))
    return Fault(f"pair at {share}", "link", subject, ("--pair", option), ("slow",), share)


def _uplink(draw: random.Random, host: int, tools: Path) -> Fault:
    rack = host // PER_RACK
    subject = tuple(_name(PER_RACK * rack + n) for n in range(PER_RACK))
    options = ("--uplink", f"{rack}:{PER_RACK * RATE_MBIT / 3:.0f}Mbit")
    return Fault("uplink at 1/3", "uplink", subject, options, ("slow",), 1 / 3)


FAULTS: tuple[Callable[[random.Random, int, Path], Fault], ...] = (
    *(_port, _port, _down, _shell, _late, _crash, _stop, _version, _wrong, _pair, _uplink),
)


def drawn(number: int, tools: Path) -> list[Fault]:
    """The faults of a campaign: 0 to 3, on different hosts, one uplink at most."""
    draw = random.Random(SEED * 1000 + number)
    hosts = draw.sample(range(HOSTS), draw.randint(0, 3))
    faults = [draw.choice(FAULTS)(draw, host, tools) for host in hosts]
    busy = {one.subject[0] for one in faults if one.kind == "host"}
    return [
        one
        for n, one in enumerate(faults)
        if one.kind in ("host", "")
        or (not busy & set(one.subject) and all(f.kind != one.kind for f in faults[:n]))
    ]


def in_cluster(faults: Sequence[Fault], words: Sequence[str]) -> list[str]:
    """The command line that runs a command on an emulated cluster with faults."""
    options = [word for one in faults for word in one.options]
    shape = ("--rate", f"{RATE_MBIT}Mbit", "--racks", f"{HOSTS // PER_RACK}x{PER_RACK}")
    return [*python("bench.cluster", *shape, *options), "--once", "--", *words]


def where() -> dict[str, object]:
    """The version of the code and the machine, for every line."""
    return {"revision": revision(), "machine": f"{cpu_model()}, {len(cores())} cores"}


def described(faults: Sequence[Fault]) -> list[dict[str, object]]:
    """The faults for a line, without their options, which name files of this machine."""
    return [
        {name: value for name, value in one._asdict().items() if name != "options"}
        for one in faults
    ]


def campaign(number: int, healthy: bool, keep: Path | None = None) -> dict[str, object]:
    """Run one campaign. Returns its line: the faults, and the result.

    ``keep``: a folder for its run directory.
    """
    with tempfile.TemporaryDirectory() as folder:
        faults = [] if healthy else drawn(number, Path(folder))
        run = (keep or Path(folder)) / f"{'healthy' if healthy else 'faults'}-{number}"
        start = time.monotonic()
        # Racks are not given: they are to be found.
        words = in_cluster(faults, python("bench.qualify", "-o", str(run), "--seed", str(number)))
        status: int | None = None
        error = f"took longer than {_CAMPAIGN_S} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                timeout=_CAMPAIGN_S,
                check=False,
                cwd=HERE.parent,
            )
            status, error = done.returncode, done.stderr[-300:]
        seconds = time.monotonic() - start
        result: dict[str, object] = {"sentence": error, "verdicts": []}
        if (run / "verdicts.json").exists():
            result = json.loads((run / "verdicts.json").read_text())
        path = run / "campaign.ndjson"
        launches = len(path.read_text().splitlines()) - 1 if path.exists() else 0
    verdicts = result["verdicts"]
    assert isinstance(verdicts, list)
    return {
        "number": number,
        "healthy": healthy,
        **where(),
        "faults": described(faults),
        "status": status,
        "seconds": round(seconds, 1),
        "launches": launches,
        "sentence": result["sentence"],
        "verdicts": [one for one in verdicts if one["state"] != "good"],
    }


class Judged(NamedTuple):
    """Outcomes of the faults of a campaign, and the subjects that were accused without a fault."""

    outcomes: list[tuple[str, str]]
    accused: list[str]


def judged(one: dict[str, object]) -> Judged:
    """Compare a campaign's verdicts with its faults."""
    verdicts = {(v["kind"], frozenset(v["subject"])): v["state"] for v in _list(one["verdicts"])}
    outcomes, explained = [], set()
    for fault in _list(one["faults"]):
        key = fault["kind"], frozenset(fault["subject"])
        explained.add(key)
        state = verdicts.get(key, "good")
        if fault["kind"] == "":
            explained.add(("host", key[1]))
            state = verdicts.get(("host", key[1]), "good")
            outcomes.append((fault["what"], "not accused" if state == "good" else state))
        elif state in fault["states"]:
            outcomes.append((fault["what"], "found"))
        else:
            outcomes.append((fault["what"], "missed" if state == "good" else state))
    accused = [
        f"{kind} {' '.join(sorted(subject))}: {state}"
        for (kind, subject), state in verdicts.items()
        if (kind, subject) not in explained and state != "cannot tell"
    ]
    return Judged(outcomes, accused)


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def shown(campaigns: Sequence[dict[str, object]]) -> Iterator[str]:
    """The lines of ``show``, in Markdown."""
    counted, accused = Counter[tuple[str, str]](), []
    for one in campaigns:
        found = judged(one)
        counted.update((what.split(" at ")[0], outcome) for what, outcome in found.outcomes)
        accused += [f"{one['number']}: {text}" for text in found.accused]
    healthy = [one for one in campaigns if one["healthy"]]
    yield f"{len(campaigns) - len(healthy)} campaigns with 0 to 3 faults, {len(healthy)} without"
    seconds = sorted(float(str(one["seconds"])) for one in campaigns)
    launches = sorted(int(str(one["launches"])) for one in campaigns)
    if campaigns:
        middle = len(campaigns) // 2
        yield f"seconds: median {seconds[middle]:g}, most {seconds[-1]:g}"
        yield f"launches: median {launches[middle]}, most {launches[-1]}"
    yield f"falsely accused: {len(accused)}"
    yield from (f"  {text}" for text in accused)
    yield ""
    yield "| fault | outcome | campaigns |"
    yield "|---|---|--:|"
    yield from (f"| {what} | {how} | {n} |" for (what, how), n in sorted(counted.items()))
    for one in campaigns:
        found = judged(one)
        if any(outcome not in ("found", "not accused") for _, outcome in found.outcomes):
            faults = ", ".join(f"{f['what']} {f['subject']}" for f in _list(one["faults"]))
            yield f"\ncampaign {one['number']}: {faults}\n  {one['sentence']}"


def main() -> None:
    """Run campaigns, or show those in a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--from", dest="first", type=int, default=0)
    run.add_argument("--to", type=int, default=60)
    run.add_argument("--healthy", action="store_true")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--keep", type=Path)
    show = commands.add_parser("show")
    show.add_argument("file", type=Path)
    options = parser.parse_args()
    path = options.file if options.command == "show" else options.out
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if options.command == "show":
        print("\n".join(shown(known)))
        return
    done = {(one["healthy"], one["number"]) for one in known}
    for number in range(options.first, options.to):
        if (options.healthy, number) in done:
            continue
        one = campaign(number, options.healthy, options.keep)
        with path.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(number, judged(one), one["sentence"], one["seconds"], flush=True)


if __name__ == "__main__":
    main()
