"""Acts as hosts with faults, without hosts: as a module for tests, and as a program for mpirun.

Of the environment, ``FAKE_FAULTS`` maps a host to what is wrong with it, as JSON; ``FAKE_LOG``
names a file that gets a line for each launch: its process and its hosts.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

MARK = "busbar-qualify "


def output(hosts, ranks, stage, faults):
    """What a launch prints: lines, the last word on standard error, and the exit status.

    The status is None where the launch hangs. ``faults``: as above.
    """
    here = {host: faults[host] for host in hosts if host in faults}
    refused = [host for host, fault in here.items() if fault == "refuse"]
    if refused:
        return [], f"ssh: connect to host {refused[0]} port 22: Connection refused", 255
    everyone = [(n, hosts[n // ranks]) for n in range(ranks * len(hosts))]
    lines = [_line("begun", *one, boot=one[1]) for one in everyone if here.get(one[1]) != "silent"]
    if {"silent", "hang"} & {*here.values()}:
        return lines, "", None
    for rank, host in everyone:
        if here.get(host) == "crash":
            failed = _line("ended", rank, host, status=3, detail="ValueError: out of order")
            return [*lines, failed], "", 3
    lines += ["x" * 300_000, MARK + "{nonsense"]
    draw = random.Random(",".join(hosts))
    share = 0.6 if "slow" in here.values() else 1.0
    rates = [1e9 * share * draw.uniform(0.99, 1.01) for _ in range(5)]
    measures = ["forward", "backward", "both"] if len(hosts) == 2 else ["allreduce"]
    for rank, host in everyone:
        facts, measured = {}, {}
        if stage == "alone":
            facts = {"kernel": "5" if here.get(host) == "old" else "6"}
        if rank == 0:
            measured = dict.fromkeys(measures, rates[:1] if stage == "alone" else rates)
        wrong = 5 if here.get(host) == "wrong" and len(hosts) > 1 else 0
        lines.append(_line("finished", rank, host, wrong=wrong, facts=facts, rates=measured))
    return lines, "", 0


def _line(event, rank, host, **values):
    """A worker's line, as of a host that reports the name by which it is launched."""
    return MARK + json.dumps({"event": event, "rank": rank, "host": host, **values})


def main():
    """Behave as an mpirun: ``-hosts A,B -ppn R -n N … WORKER STAGE …``."""
    hosts = sys.argv[sys.argv.index("-hosts") + 1].split(",")
    ranks = int(sys.argv[sys.argv.index("-ppn") + 1])
    stage = sys.argv[sys.argv.index("bench.qualify.worker") + 1]
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(f"{os.getpid()} {','.join(hosts)}\n")
    lines, error, status = output(hosts, ranks, stage, json.loads(os.environ["FAKE_FAULTS"]))
    print("\n".join(lines), flush=True)
    if status is None:
        time.sleep(600)
    print(error, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
