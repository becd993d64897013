"""Files in and out: what is no MSCCL XML is refused in one line; what we write reads back."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.errors import Unsupported
from collectives.formats.msccl import MscclError, parse, write
from collectives.formats.simulators import chakra, goal, turns
from collectives.schedule.catalogue import build, spec
from collectives.schedule.cost import traffic
from collectives.schedule.layout import Layout
from tests.collectives.msccl_files import OWN, exported
from tests.command import collectives_main as main
from tests.conftest import Run

TEXT = write(exported("allreduce", "ring", 3)).decode()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("<algo ", "<algorithm ", "1: algorithm: the outermost element"),
        ('ngpus="3"', 'ngpus="4"', "ngpus is 4, but there is no gpu 3"),
        ('ngpus="3"', 'ngpus="1000000"', "1: algo: ngpus=1000000 is not between 1 and"),
        ('proto="Simple"', 'proto="simple"', "proto='simple' is none of Simple, LL, LL128"),
        ('gpu id="1"', 'gpu id="0"', "gpu: there is a gpu 0 already"),
        ('send="1"', 'send="0"', "6: gpu 0: tb 1: send is the gpu itself"),
        ('send="1"', 'send="3"', "send=3 is not between -1 and 2"),
        ('tb id="1"', 'tb id="0"', "there is one with this id already"),
        ('chan="0"', 'chan="1"', "chan=1 is not between 0 and 0"),
        ('type="rrc"', 'type="sum"', "gpu 0: tb 2: step 0: type='sum' is none of s, r,"),
        ('srcbuf="o"', 'srcbuf="x"', "srcbuf='x' is none of i, o, s"),
        ('cnt="1"', 'cnt="1e3"', "cnt='1e3' is not a whole number"),
        ('cnt="1"', 'cnt="99999999999"', "cnt=99999999999 is not between"),
        ('cnt="1"', "", "the attribute cnt is missing"),
        ('deps="0"', 'deps="-1"', "but deps=-1 is no step"),
        ('type="cpy"', 'type="s"', "s sends, but the threadblock's send is -1"),
        ('type="s"', 'type="r"', "r receives, but the threadblock's recv is -1"),
        ("</algo>", "", "no XML: "),
    ],
)
def test_what_is_no_algorithm(old: str, new: str, complaint: str) -> None:
    """Each fault is told in one line with the file, the line, the element and the reason."""
    assert old in TEXT
    with pytest.raises(MscclError, match=complaint) as caught:
        parse(TEXT.replace(old, new, 1).encode(), "f.xml")
    assert str(caught.value).startswith("f.xml:")
    assert "\n" not in str(caught.value)


def test_no_dtd_and_so_no_entities() -> None:
    """A DTD is refused before it can define anything."""
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + TEXT
    with pytest.raises(MscclError, match="a DTD is not accepted"):
        parse(bomb.encode())


def test_what_the_runtime_ignores() -> None:
    """Unknown elements with their content, unknown attributes, comments and text are skipped."""
    odd = TEXT.replace("<gpu ", '<!-- x --><note><gpu id="0"/></note><gpu colour="red" ')
    odd = odd.replace("<step ", "<tb/>text<step ")
    assert parse(odd.encode()) == parse(TEXT.encode())


def test_older_files_say_only_in_place() -> None:
    """Without outofplace a file is for the one placement that inplace says."""
    old = TEXT.replace(' outofplace="1"', "")
    assert parse(old.encode()).placements() == (True,)
    assert parse(old.replace('inplace="1"', 'inplace="0"').encode()).placements() == (False,)


def test_goal_runs_to_its_end() -> None:
    """A GOAL text has every message's other end, and carried out by its rules it ends."""
    for name in ("ring", "recursive_doubling", "one_shot"):
        schedule = build("allreduce", name, 4)
        what = spec("allreduce")
        where = Layout.of(schedule, what)
        ranks = turns(schedule, where, 4096)
        sent = _carry_out(goal(ranks, 0.5).decode())
        assert sent == traffic(schedule, what, 4096, 1)[0].tolist()


def _carry_out(text: str) -> list[int]:
    """Bytes that each rank sent when all operations have run as soon as they may."""
    operations: dict[tuple[int, str], list[str]] = {}
    waits: dict[tuple[int, str], set[str]] = defaultdict(set)
    lines = iter(text.splitlines())
    assert next(lines) == "num_ranks 4"
    rank = -1
    for line in filter(None, lines):
        if line.startswith("rank"):
            rank = int(line.split()[1])
        elif ":" in line:
            label, _, rest = line.partition(": ")
            operations[rank, label] = rest.split()
        elif "requires" in line:
            label, _, other = line.split()
            waits[rank, label].add(other)
    sent, box, done = [0] * 4, defaultdict(list), set()
    while len(done) < len(operations):
        before = len(done)
        for (rank, label), words in operations.items():
            if (rank, label) in done or any((rank, w) not in done for w in waits[rank, label]):
                continue
            if words[0] == "send":
                size, peer, tag = int(words[1][:-1]), int(words[3]), words[5]
                box[rank, peer, tag].append(size)
                sent[rank] += size
            elif words[0] == "recv":
                key = int(words[3]), rank, words[5]
                if not box[key]:
                    continue
                assert box[key].pop(0) == int(words[1][:-1])
            done.add((rank, label))
        assert len(done) > before, "the text deadlocks"
    assert not any(box.values())
    return sent


def _varint(data: bytes) -> tuple[int, bytes]:
    """The number at the beginning of protobuf's bytes, and what follows it."""
    size = next(i for i, byte in enumerate(data) if byte < 128) + 1
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data[:size])), data[size:]


def _fields(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message's fields, without its schema."""
    found: dict[int, list[Any]] = defaultdict(list)
    while data:
        key, data = _varint(data)
        value, data = _varint(data)
        assert key & 7 in (0, 2)
        found[key >> 3].append(data[:value] if key & 7 else value)
        data = data[value:] if key & 7 else data
    return found


def _split(data: bytes) -> Iterator[bytes]:
    """The messages of a trace, each behind its length."""
    while data:
        size, data = _varint(data)
        yield data[:size]
        data = data[size:]


def test_chakra_traces_hold_every_message_once() -> None:
    """Every send has a receive of its size in the peer's trace; nodes wait for earlier ones."""
    schedule = build("allreduce", "ring", 4)
    what = spec("allreduce")
    traces = chakra(turns(schedule, Layout.of(schedule, what), 5000))
    sends, receives = set(), set()
    for rank, trace in enumerate(traces):
        metadata, *nodes = _split(trace)
        assert _fields(metadata)[1] == [b"0.0.4"]
        for number, node in enumerate(map(_fields, nodes)):
            assert node[1] == [number]
            waits = list(b"".join(node[5]))
            assert all(w < number for w in waits)
            attributes = {}
            for raw in node[10]:
                one = _fields(raw)
                (value,) = (v[0] for k, v in one.items() if k != 1)
                attributes[one[1][0].decode()] = value
            if node[3] == [4]:
                assert attributes["num_ops"] >= 1
                continue
            message = tuple(attributes[f"comm_{k}"] for k in ("src", "dst", "tag", "size"))
            assert message[0 if node[3] == [5] else 1] == rank
            (sends if node[3] == [5] else receives).add(message)
    assert sends == receives
    assert sum(m[3] for m in sends) == traffic(schedule, what, 5000, 1)[0].sum()


def test_sizes_that_leave_nothing() -> None:
    """A size too small for the ranks is refused."""
    schedule = build("allgather", "ring", 4)
    with pytest.raises(Unsupported, match="3 bytes leave no rank any"):
        turns(schedule, Layout.of(schedule, spec("allgather")), 3)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export, verify, import, cost and show agree on a file; wrong is status 1, bad is 2.

    Verify takes several files and names; each file is a line, and the worst status counts.
    """
    file = tmp_path / "ring.xml"
    assert main(["export", "ring", "-c", "allreduce", "-n", "4", "-o", str(file)]) == 0
    assert main(["verify", str(file)]) == 0
    assert "proven out of place and in place" in capsys.readouterr().out
    assert main(["import", str(file)]) == 0
    assert "6 steps with messages" in capsys.readouterr().out
    assert main(["cost", str(file)]) == 0
    assert main(["show", str(file)]) == 0
    capsys.readouterr()
    for command in ("verify", "cost", "show", "export"):
        for option, complaint in (
            ("-n", "for 4 ranks, not 2"),
            ("-c", "for allreduce, not reduce"),
        ):
            assert main([command, str(file), option, "2" if option == "-n" else "reduce"]) == 2
            assert complaint in capsys.readouterr().err
    again = tmp_path / "again.xml"
    assert main(["export", str(file), "-o", str(again)]) == 0
    capsys.readouterr()
    file.write_text(file.read_text().replace('type="rrc"', 'type="r"', 1))
    assert main(["verify", str(file), str(again), "ring", "tree", "-n", "4"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"collectives: {file}: gpu") and err.count("\n") == 1
    assert out.startswith(f"{again}: ") and "; proven out of place" in out.split("\n")[0]
    assert " ring " in out and " tree " in out
    for command, status in (("verify", 1), ("import", 2)):
        assert main([command, str(file)]) == status
        told = capsys.readouterr()
        assert told.out == ""
        assert f"{file}: gpu" in told.err
        assert told.err.count("\n") == 1
    file.write_text("<algo>")
    for command in ("verify", "import", "cost", "show", "export"):
        assert main([command, str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"collectives: {file}:1: ")
    for command in ("verify", "import", "export"):
        assert main([command, str(tmp_path / "none.xml")]) == 2
        assert "No such file" in capsys.readouterr().err


def test_bench_runs_a_file(tmp_path: Path, run: Run) -> None:
    """``-A FILE.xml`` measures and checks a file's schedule like one of ours."""
    file = tmp_path / "t.xml"
    file.write_bytes(write(exported("allreduce", "recursive_doubling", 2)))
    done = run(
        sys.executable,
        *("-m", "bench.allreduce", "--ranks", "2", "--transport", "inproc"),
        *("-A", str(file), "-b", "4K", "-e", "4K", "-n", "2"),
    )
    assert done.returncode == 0, done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout


def test_a_name_with_a_folder_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: what has a slash is a file, whatever it ends in; a bare word is an algorithm."""
    monkeypatch.chdir(tmp_path)
    Path("ring.txt").write_bytes(write(exported("allreduce", "ring", 3)))
    assert main(["verify", "./ring.txt"]) == 0
    assert "proven" in capsys.readouterr().out
    for name, complaint in (
        ("./none.txt", "none.txt: cannot be read: No such file"),
        ("ring.txt", "no algorithm 'ring.txt'"),
    ):
        assert main(["verify", name]) == 2
        assert complaint in capsys.readouterr().err


def test_reading_is_exact() -> None:
    """A file's own numbers survive, as its name and limits do."""
    text = OWN["ar_allpairs_8"].read_text()
    own = {"name": "allreduce_4perring", "minBytes": "266240", "maxBytes": "2078719"}
    for name, value in own.items():
        text = re.sub(rf'^(<algo.*?) {name}="[^"]*"', r"\1", text)
        text = text.replace("<algo ", f'<algo {name}="{value}" ', 1)
    algorithm = parse(text.encode())
    assert algorithm.name == "allreduce_4perring"
    assert (algorithm.min_bytes, algorithm.max_bytes) == (266240, 2078719)
    assert (algorithm.ngpus, algorithm.nchannels, algorithm.proto) == (8, 1, "LL")
