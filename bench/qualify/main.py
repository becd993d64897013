"""``busbar qualify``: from a command line to verdicts and files for schedulers."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import takewhile
from pathlib import Path

from bench.launch.hostfile import from_file, from_words
from bench.launch.launch import Interrupted, raise_file_limit
from bench.options.options import transport_names
from bench.qualify import hosts as hostlist
from bench.qualify import text
from bench.qualify.decide import decide
from bench.qualify.engine import GUARD_S, Engine
from bench.qualify.evidence import Evidence
from bench.qualify.launchers import KINDS, SRUN, Launcher, choose
from bench.qualify.lines import Identity
from bench.qualify.model import (
    ALLREDUCE,
    BACKWARD,
    BOTH,
    FORWARD,
    MEASURES,
    WAYS,
    Cluster,
    Decision,
    Ending,
    HostReport,
    Launch,
    Limits,
    Observation,
    Stage,
    State,
    Verdict,
)
from bench.qualify.page import page
from bench.qualify.records import records
from bench.qualify.speeds import across_racks
from bench.qualify.store import (
    FILE,
    FORMAT,
    RECORDS,
    VERSION,
    Campaign,
    Header,
    Settings,
    Store,
    load,
    write_result,
)
from bench.qualify.task import Task
from busbar.arguments import Parser, program, time_in, whole
from busbar.commands import Command
from busbar.errors import StoreError, Unavailable, Unsupported
from busbar.files import check, write
from busbar.host import core_share, hostname
from busbar.launchers import launched
from busbar.options import Self, option, switch
from busbar.start import python
from busbar.status import FOUND, GOOD
from busbar.tables import new_table
from busbar.terminal import open_console, print_note
from busbar.units import format_count, format_duration, parse_size
from reports.analysis.expect import parse_rate, parse_share
from reports.records.measurement import is_emulated

# The table's width, and seconds that each host more than two may add to a launch's deadline.
_WIDTH, _EACH_S = 80, 0.5
_MOST_BYTES = 1 << 30
# The rate of hosts without a fault in a plan, in bytes/s: above any --minimum.
_ABOVE_MINIMUM = 1e18
# Most hosts for which --dry-run lists every launch.
_MOST_LISTED = 32
# Launches at the same time for each core, and at most: each is a few processes, and one of Slurm's
# controller. Files that this process opens for each, and for itself.
_EACH_CORE, _MOST_AT_ONCE = 4, 256
# The limit of a campaign's launches. A host that stays a suspect has 8 launches alone, 16 to
# confirm it, and a part in 14 rounds of pairs, each with half as many launches as hosts.
_LAUNCHES_A_HOST, _LEAST_LAUNCHES = 32, 100_000
_LAUNCH_FILES, _OWN_FILES = 6, 64


def _minimum(text: str) -> tuple[str, float]:
    """A measure and its minimum rate in bytes per second, from text such as ``memory=10GB/s``.

    The text has a rate of both directions as `reports` shows it, their sum; returned is that of
    each direction, as in an observation.
    """
    measure, _, rate = text.partition("=")
    if measure not in MEASURES:
        raise Unsupported(f"{text[:40]!r}: write MEASURE=RATE, of {', '.join(MEASURES)}")
    return measure, parse_rate(rate) / WAYS.get(measure, 1)


class QualifyCommand(Command):
    """Say of each host, link and rack of a cluster whether it is good, with the evidence.

    Exit status 0 if all hosts are good, 1 if not.
    """

    EPILOG = (
        "Without --hostfile and --hosts the hosts are those of the Slurm or PBS job, or of the"
        " host file that MPI's launchers have. See docs/qualify.md."
    )

    hostfile: Path | None = option(
        "--hostfile FILE  the hosts, one a line", alternatives="hosts", title="hosts"
    )
    hosts: str | None = option(
        "--hosts --host A,B,C  the hosts by name, such as node[001-128,200]", alternatives="hosts"
    )
    racks: Path | None = option("--racks FILE  the racks, in lines HOST RACK (default: found)")
    launcher: str | None = option(
        "--launcher NAME  what starts ranks: srun in a Slurm job, mpirun, or ssh, which can only"
        " measure each host alone (default: the first that fits)",
        choices=KINDS,
        title="launches",
    )
    launcher_option: tuple[str, ...] = option(
        "--launcher-option WORD  an option for the launcher, such as --launcher-option=--mpi=pmi2;"
        " repeatable",
        (),
        action="append",
    )
    ssh: str = option("--ssh PROGRAM  remote shell of --launcher ssh", "ssh")
    ranks_per_host: int | None = option(
        "--ranks-per-host R  ranks on each host, such as one for each GPU (default: 2 for a host"
        " alone, 1 in pairs)",
        parse=whole(1, "ranks", 1024),
    )
    transport: str = option(
        "--transport  what moves the bytes, as for a benchmark", "auto", choices=transport_names
    )
    bytes: int = option("--bytes N  vector of each measurement (default 1M)", 1 << 20, parse_size)
    repeats: int = option("--repeats N  rates per launch and measure", 5, whole(1, "rates", 1000))
    deadline: float = option(
        "--deadline SECONDS|2m  time limit of a launch on two hosts",
        30.0,
        time_in("s", 1, 86400),
    )
    at_once: int | None = option(
        f"--at-once N  most launches at the same time (default: {_EACH_CORE} a core of this"
        f" machine, at most {_MOST_AT_ONCE})",
        parse=whole(1, "launches", 1 << 16),
    )
    slow: float = option(
        "--slow SHARE  a host is slow below this share of the median host (default 95%)",
        0.95,
        parse_share,
        title="verdicts",
    )
    minimum: tuple[tuple[str, float], ...] = option(
        "--minimum MEASURE=RATE  a host is slow below this rate, too: of memory or allreduce alone,"
        " of forward, backward or both (the sum of both directions) in its best pair, such as"
        " memory=10GB/s; repeatable",
        (),
        _minimum,
        action="append",
    )
    launches: int | None = option(
        f"--launches N  most launches of the run (default: {_LAUNCHES_A_HOST} a host, and"
        f" {_LEAST_LAUNCHES:,} at least)",
        parse=whole(1, "launches", 10**7),
    )
    seed: int = option("--seed N  seed of the choice of pairs", 1, whole(0, "as seed", 2**31))
    run_dir: Path | None = option(
        "-o --out FOLDER  keep every launch here (default qualify-DATE-TIME)",
        alternatives="run",
        title="output",
    )
    resume: Path | None = option(
        "--resume FOLDER  go on with a run that was interrupted, or print the verdicts of one that"
        " has ended",
        alternatives="run",
    )
    dry_run: bool = switch("--dry-run  print the launches of a cluster without faults, and exit")
    good: Path | None = option("--good FILE  write the good hosts, rack by rack, as a host file")
    exclude: Path | None = option("--exclude FILE  write the bad hosts, for srun --exclude")
    drain: Path | None = option("--drain FILE  write a script that drains the bad hosts in Slurm")
    cordon: Path | None = option(
        "--cordon FILE  write a script that cordons the bad hosts in Kubernetes"
    )
    metrics: Path | None = option(
        "--metrics FILE  write Prometheus's text format for the textfile collector"
    )
    page: Path | None = option("--page FILE  write a page with the matrix of pairs, as HTML")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Raises Unsupported for hosts without an option, or their file."""
        words = list(takewhile(lambda word: not word.startswith("-"), argv))
        if words:
            option_ = f"--hosts {','.join(words)}"
            if Path(words[0]).is_dir():
                option_ = f"--resume {words[0]}"
            elif Path(words[0]).is_file():
                option_ = f"--hostfile {words[0]}"
            raise Unsupported(f"{' '.join(words)}: no option; is it {parser.prog} {option_}?")
        return super().parse(argv, parser, **more)

    def checked(self) -> Self:
        """These options. Raises Unsupported for options that a resumed campaign cannot change."""
        fixed = self.given & {*_SETTLED}
        if self.resume is not None and fixed:
            flag = "--" + min(fixed).replace("_", "-")
            raise Unsupported(f"{flag}: the run in {self.resume} has it already; leave it out")
        if not 8 <= self.bytes <= _MOST_BYTES:
            raise Unsupported(f"--bytes {self.bytes}: from 8 to {_MOST_BYTES}")
        return self

    def run(self) -> int:
        """Run the campaign, print the verdicts and write the files. Returns the exit status."""
        starter = launched()
        if starter is not None and starter.size > 1:
            raise Unsupported(
                f"{starter.by} started {starter.size} processes; qualify starts ranks itself:"
                " start it once"
            )
        campaign = load(self.resume) if self.resume is not None else self._new()
        kept = campaign.header.settings
        launcher = choose(kept.launcher or None, kept.launcher_options, kept.ssh, os.environ)
        if self.dry_run:
            if launcher.kind == SRUN:
                hostlist.check_in_job(campaign.header.cluster.hosts, os.environ)
            for line in plan(self._engine(campaign, launcher), campaign.header, launcher):
                print(line)
            return GOOD
        for path in self._files():
            check(path)
        start = time.monotonic()
        folder = self.resume or self.run_dir or _named(campaign.header)
        if self.resume is None and (folder / FILE).is_file():
            raise StoreError(f"{folder}: has a run already; --resume {folder} goes on with it")
        header, before = campaign.header, len(campaign.observations)
        engine = self._engine(campaign, launcher)
        last, known = _campaign(engine, folder, campaign, launcher)
        seconds, ended = time.monotonic() - start, time.time()
        if len(known) == before:  # it had ended already
            ended = (folder / FILE).stat().st_mtime
            seconds = max(0.0, ended - datetime.fromisoformat(header.started).timestamp())
        across = across_racks(Evidence(header.cluster, header.limits, known))
        sentence = text.sentence(header.cluster, last.verdicts, across)
        unwritten = _each_written(
            lambda: write_result(folder, header, sentence, last.verdicts),
            lambda: _write_records(folder, header, known),
            *self._writing(header, last.verdicts, known, (seconds, ended), sentence),
        )
        _print(header.cluster, last.verdicts, sentence)
        print_note(
            f"{format_count(len(known), 'launch')} in {format_duration(seconds)}, kept in {folder}"
        )
        if not last.launches and len(known) >= header.limits.launches:
            print_note(f"ended by the limit of {format_count(len(known), 'launch')} (--launches)")
        if remedy := _next_step(known, engine):
            print_note(remedy)
        if text.bad(last.verdicts) and not self._files():
            print_note(
                f"next: --resume {folder} with --drain, --cordon, --exclude or --good FILE writes"
                " what schedulers read, without a launch; docs/operations.md says where to look"
            )
        for error in unwritten:
            print_note(error)
        if unwritten:
            print_note(f"--resume {folder} with these options writes them again, without a launch")
        good = all(one.state is State.GOOD for one in last.verdicts)
        return GOOD if good and not unwritten else FOUND

    def _new(self) -> Campaign:
        """A new campaign from the options."""
        if self.hostfile is not None:
            named = from_file(self.hostfile)
        elif self.hosts is not None:
            named = from_words(self.hosts)
        else:
            named = hostlist.from_environment(os.environ)
        names = hostlist.checked(named)
        racks = hostlist.racks(self.racks, names) if self.racks is not None else {}
        settings = Settings(
            launcher=self.launcher or "",
            launcher_options=tuple(self.launcher_option),
            ssh=self.ssh,
            transport=self.transport,
            ranks=self.ranks_per_host or 0,
            nbytes=self.bytes,
            repeats=self.repeats,
            deadline=self.deadline,
        )
        limits = Limits(
            slow=self.slow,
            launches=self.launches or max(_LEAST_LAUNCHES, _LAUNCHES_A_HOST * len(names)),
            seed=self.seed,
            minimum=dict(self.minimum),
        )
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Campaign(
            Header(
                format=FORMAT,
                version=VERSION,
                started=started,
                cluster=Cluster(names, racks),
                limits=limits,
                settings=settings,
            )
        )

    def _engine(self, campaign: Campaign, launcher: Launcher, cores: float | None = None) -> Engine:
        """The engine that runs launches; ``cores``: of the launching host (default: this one)."""
        settings = campaign.header.settings

        def ranks(launch: Launch) -> int:
            if not launcher.can_join:  # it starts a single process
                return 1
            return settings.ranks or (2 if launch.stage is Stage.ALONE else 1)

        def deadline(launch: Launch) -> float:
            return settings.deadline + _EACH_S * max(0, len(launch.hosts) - 2)

        def words(launch: Launch) -> Sequence[str]:
            task = Task(
                launch.stage.value,
                len(launch.hosts),
                settings.nbytes,
                settings.repeats,
                deadline(launch) + GUARD_S,
                settings.transport,
            )
            worker = python("bench.qualify.worker", *task.words())
            return launcher.words(launch.hosts, ranks(launch), worker)

        env = launcher.environment(os.environ, os.geteuid() == 0)
        cores = core_share() if cores is None else cores
        most = max(1, min(_MOST_AT_ONCE, int(_EACH_CORE * cores)))
        at_once = min(self.at_once or most, len(campaign.header.cluster.hosts))
        files = raise_file_limit(_OWN_FILES + _LAUNCH_FILES * at_once)
        at_once = max(1, (files - _OWN_FILES) // _LAUNCH_FILES)
        known = {host.partition(".")[0]: host for host in campaign.header.cluster.hosts}
        here = known.get(hostname(), "")
        return Engine(words, env, ranks, deadline, at_once, dict(campaign.identities), here)

    def _files(self) -> list[Path]:
        files = (self.good, self.exclude, self.drain, self.cordon, self.metrics, self.page)
        return [path for path in files if path is not None]

    def _writing(
        self,
        header: Header,
        verdicts: Sequence[Verdict],
        known: Sequence[Observation],
        took: tuple[float, float],
        sentence: str,
    ) -> Iterator[Callable[[], None]]:
        """A function for each requested file, which writes it.

        ``took``: seconds, and the time of the end; ``sentence``: the result, for the page.
        """
        bad = [one.subject[0] for one in text.bad(verdicts)]
        contents: Sequence[tuple[Path | None, Callable[[], str | bytes]]] = (
            (self.page, lambda: page(header.cluster, verdicts, known, sentence)),
            (self.good, lambda: text.hostfile(text.good_hosts(header.cluster, verdicts))),
            (self.exclude, lambda: text.hostfile(bad)),
            (self.drain, lambda: text.drain_script(verdicts)),
            (self.cordon, lambda: text.cordon_script(verdicts)),
            (self.metrics, lambda: text.metrics(verdicts, *took)),
        )
        for path, make in contents:
            if path is not None:
                data = make()
                yield partial(write, path, data.encode() if isinstance(data, str) else data)


def _each_written(*writing: Callable[[], None]) -> list[str]:
    """Call all of these functions, each of which writes a file; returns the errors as text.

    A file that cannot be written hides no verdict and no other file.
    """
    errors = []
    for one in writing:
        try:
            one()
        except StoreError as error:
            errors.append(str(error))
    return errors


_SETTLED = (
    *("hostfile", "hosts", "racks", "launcher", "launcher_option", "ssh", "ranks_per_host"),
    *("transport", "bytes"),
    *("repeats", "deadline", "slow", "minimum", "launches", "seed"),
)


# The batch of launches that belong to none.
_NO_BATCH = -1
# The question that each stage answers.
_ABOUT = {
    Stage.ALONE: "is each host reachable, with the same software, as fast as hosts of its kind?",
    Stage.PAIRS: "a host is at least as fast as the best of its pairs; who is slow or silent?",
    Stage.CONFIRM: "suspects with hosts known to be good: is it the host, its link or its rack?",
    Stage.TOGETHER: "do all good hosts together reach what their pairs promise?",
}


class Recorder:
    """Stores every observation, and prints the purpose of each batch; see `engine.Watcher`.

    ``observations``: all stored ones, including those from before an interruption.
    """

    def __init__(self, store: Store, engine: Engine, observations: list[Observation]) -> None:
        self.observations = observations
        self._store, self._engine = store, engine
        self._stage: Stage | None = None
        self._same: dict[tuple[str, str], str] = {
            (one.hostname, one.boot): host for host, one in engine.identities.items()
        }

    def decided(self, decision: Decision) -> None:
        """Print the stage, its purpose, and the most time that it may take."""
        if not decision.launches:
            return
        stage = decision.launches[-1].stage  # hosts to launch alone once more come first
        if stage is not self._stage:
            print_note(f"stage {stage.value}: {_ABOUT[stage]}")
        self._stage = stage
        print_note(f"  {_announced(decision, self._engine)}")

    def observed(self, observation: Observation) -> None:
        """Store an observation. Raises Unsupported if two host names belong to one machine."""
        host = observation.launch.hosts[0]
        alone = observation.launch.stage is Stage.ALONE
        own = self._engine.identities.get(host) if alone else None
        if own is not None:
            other = self._same.setdefault((own.hostname, own.boot), host)
            if other != host:
                raise Unsupported(
                    f"{host} and {other} are one machine, which calls itself"
                    f" {own.hostname}; leave one of them out"
                )
        self._store.add(observation, own)
        self.observations.append(observation)


def _announced(decision: Decision, engine: Engine) -> str:
    """The purpose of a batch, its number of launches, and the most time that they may take."""
    launches = decision.launches
    sizes = sorted({len(one.hosts) for one in launches})
    hosts = " or ".join(map(str, sizes)) + (" host" if sizes == [1] else " hosts")
    most = format_duration(longest(launches, engine))
    count = f"{len(launches)} launches on {hosts} each"
    if len(launches) == 1:
        count = f"1 launch on {hosts}"
    return f"{decision.purpose}: {count}, at most {most}"


def longest(launches: Sequence[Launch], engine: Engine) -> float:
    """The most seconds that a batch may take."""
    total = 0.0
    for together in engine.in_turn(launches):
        slots = [0.0] * min(engine.at_once, len(together))
        for launch in together:
            slots[slots.index(min(slots))] += engine.deadline(launch)
        total += max(slots)
    return total


def _campaign(
    engine: Engine, folder: Path, campaign: Campaign, launcher: Launcher
) -> tuple[Decision, list[Observation]]:
    """Run the campaign's launches that its folder does not have yet."""
    header = campaign.header

    def next_batch(observations: Sequence[Observation]) -> Decision:
        comparable = without_shared(observations, engine.identities)
        try:
            decision = decide(header.cluster, header.limits, comparable)
        except ValueError:
            raise Unsupported(
                f"{folder}: another version of Busbar began this run and would go on with"
                " other launches; start a new one"
            ) from None
        return _possible(decision, engine, launcher)

    if launcher.kind == SRUN and next_batch(campaign.observations).launches:
        hostlist.check_in_job(header.cluster.hosts, os.environ)
    where = " in the same busbar cluster" if is_emulated({"variables": os.environ}) else ""
    remedy = f"{program('bench.qualify')} --resume {folder} goes on{where}"
    if (folder / FILE).is_file() and next_batch(campaign.observations).launches:
        _check_resumable(engine, folder, campaign, remedy)
    store = Store(folder, campaign)
    recorder = Recorder(store, engine, campaign.observations)
    try:
        last = engine.campaign(next_batch, campaign.observations, recorder, remedy)
    except Interrupted:
        _write_records(folder, header, recorder.observations)
        raise
    finally:
        store.close()
    return last, recorder.observations


class _Unkept:
    """Keeps no observation in the run directory; see `engine.Watcher`."""

    def __init__(self) -> None:
        self.works = False

    def decided(self, decision: Decision) -> None:
        """Print the purpose."""
        if decision.launches:
            print_note(decision.purpose)

    def observed(self, observation: Observation) -> None:
        """See whether the launch worked."""
        self.works = self.works or observation.reports[0].ending is Ending.FINISHED


def _check_resumable(engine: Engine, folder: Path, campaign: Campaign, remedy: str) -> None:
    """Launch some hosts that worked before the interruption, or else some that had no launch yet.

    Raises Unavailable if none of them works, as on a machine outside the cluster: the launches that
    are left would fail there, and would count against the hosts.
    """
    alone = [one for one in campaign.observations if one.launch.stage is Stage.ALONE]
    worked = [one.launch.hosts[0] for one in alone if one.reports[0].ending is Ending.FINISHED]
    tried = {one.launch.hosts[0] for one in alone}
    every = campaign.header.cluster.hosts
    hosts = worked or [host for host in every if host not in tried] or every
    chosen = dict.fromkeys((hosts[0], hosts[len(hosts) // 2], hosts[-1]))
    launches = tuple(Launch(n, _NO_BATCH, Stage.ALONE, (host,)) for n, host in enumerate(chosen))
    names, before = ", ".join(chosen), "(which worked before) " * bool(worked)
    purpose = f"before going on: do hosts work from here ({names})?"
    watcher = _Unkept()
    engine.campaign(
        lambda ended: Decision(() if ended else launches, (), purpose), (), watcher, remedy
    )
    if not watcher.works:
        raise Unavailable(
            f"{folder}: not resumed, unchanged: {names} {before}do not work from here; resume"
            " where the run began (in its busbar cluster, job or network), or look at the"
            f" launcher: {shlex.join(engine.words(launches[0]))}"
        )


def _write_records(folder: Path, header: Header, known: Sequence[Observation]) -> None:
    """Write the rates of these observations, if they have any. Raises StoreError."""
    if rates := records(header, known):
        write(folder / RECORDS, rates)


def _next_step(known: Sequence[Observation], engine: Engine) -> str:
    """What to do where no launch has worked: the deadline, and a launch's command; else empty."""
    endings = [{report.ending for report in one.reports} for one in known]
    if not known or {Ending.FINISHED} in endings:
        return ""
    launch = known[0].launch
    late = f"no host finished in {format_duration(engine.deadline(launch))}: raise --deadline, or "
    first = late * any(Ending.HUNG in one for one in endings)
    again = "once it works, qualify into a new folder (-o)"
    return f"next: {first}look at the launcher: {shlex.join(engine.words(launch))}; {again}"


def without_shared(
    observations: Sequence[Observation], identities: Mapping[str, Identity]
) -> list[Observation]:
    """Observations without rates from launches on single hosts that share a kernel.

    Such hosts, for example emulated ones, share cores and memory, so these rates mean nothing.
    """
    kernels = Counter(one.boot for one in identities.values())
    shared = {host for host, one in identities.items() if kernels[one.boot] > 1}
    return [
        replace(one, reports=tuple(replace(report, rates={}) for report in one.reports))
        if one.launch.stage is Stage.ALONE and one.launch.hosts[0] in shared
        else one
        for one in observations
    ]


def _possible(decision: Decision, engine: Engine, launcher: Launcher) -> Decision:
    """The decision without the launches that a launcher cannot start."""
    possible = []
    for one in decision.launches:
        if launcher.can_start(one.hosts, engine.ranks(one)):
            possible.append(one)
        elif launcher.can_join:
            print_note(f"{len(one.hosts):,} hosts together are not measured: too many for a launch")
    return replace(decision, launches=tuple(possible))


def plan(engine: Engine, header: Header, launcher: Launcher) -> Iterator[str]:
    """The lines of ``--dry-run``: the launches if no host has a fault; of many hosts, how many."""
    count, total = 0, 0.0
    for launches, announced in _without_faults(engine, header, launcher):
        yield f"# {announced}"
        if len(header.cluster.hosts) <= _MOST_LISTED:
            for launch in launches:
                yield f"{launch.number:>5}  {' '.join(launch.hosts)}"
        count += len(launches)
        total += longest(launches, engine)
    most = format_duration(total)
    yield f"# {format_count(count, 'launch')}, at most {most}; more where hosts are suspects"


def most_seconds(words: Sequence[str], hosts: int, cores: int) -> float:
    """The most seconds that ``qualify`` with these words takes if no host has a fault.

    ``cores``: of the host that launches, which limits how many launches run at the same time.
    Raises Unsupported for words that are no options of ``qualify``.
    """
    options = QualifyCommand.parse(words, QualifyCommand.make_parser())
    command = replace(options, hosts=f"host[1-{hosts}]", hostfile=None, racks=None, resume=None)
    campaign, launcher = command._new(), Launcher(SRUN, SRUN)
    engine = command._engine(campaign, launcher, cores)
    batches = _without_faults(engine, campaign.header, launcher)
    return sum(longest(launches, engine) for launches, _ in batches)


def _without_faults(
    engine: Engine, header: Header, launcher: Launcher
) -> Iterator[tuple[Sequence[Launch], str]]:
    """The batches of launches if no host has a fault, and what is announced of each."""
    known: list[Observation] = []
    while True:
        decision = _possible(decide(header.cluster, header.limits, known), engine, launcher)
        if not decision.launches:
            break
        yield decision.launches, _announced(decision, engine)
        known += map(_healthy, decision.launches)


def _healthy(launch: Launch) -> Observation:
    """The observation of a launch if all hosts are equally good."""
    alone = launch.stage is Stage.ALONE
    reports = tuple(HostReport(host, Ending.FINISHED, "", 0) for host in launch.hosts)
    measures = (FORWARD, BACKWARD, BOTH) if len(launch.hosts) == 2 else (ALLREDUCE,)
    rates = {} if alone else dict.fromkeys(measures, (_ABOVE_MINIMUM,) * 5)
    return Observation(launch, reports, rates, 1.0)


def _named(header: Header) -> Path:
    stamp = header.started.partition("+")[0].replace(":", "").replace("-", "").replace("T", "-")
    return Path(f"qualify-{stamp}")


def _print(cluster: Cluster, verdicts: Sequence[Verdict], sentence: str) -> None:
    """Print the table and the sentence."""
    columns = text.table(cluster, verdicts)
    drawn = new_table("", padding=(0, 1, 0, 0))
    for name, side, _ in columns:
        drawn.add_column(name, justify=side, overflow="fold")
    from rich.text import Text

    for row in zip(*(cells for _, _, cells in columns), strict=True):
        drawn.add_row(*map(Text, row))
    open_console(width=_WIDTH).print(drawn, crop=False)
    print(sentence)
