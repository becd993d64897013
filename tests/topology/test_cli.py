"""The command line: exit statuses, one clear line for bad input, and nothing slow at the start."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from busbar import status
from tests.command import reports_main, topology_main
from tests.conftest import Run
from tests.reports import logs
from tests.reports.runs import records, to_jsonl
from topology import cli
from topology.diagnostics import differences
from topology.exports import EXPORTS
from topology.model.topology import Device, Fact, Kind, Topology
from topology.sources import own_json
from topology.views import terminal

from .conftest import Loaded
from .machines import dgx_1v, field_report, switched
from .texts import NVLINK, P2P


@pytest.fixture
def report(tmp_path: Path) -> str:
    """A file with the matrix of the field report's machine."""
    path = tmp_path / "topo.txt"
    path.write_text(terminal.matrix_text(field_report()))
    return str(path)


def test_standard_input_and_several_files_are_one_map(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: - reads standard input, formats are recognised, and files are merged."""
    nvlink = tmp_path / "own.json"
    nvlink.write_text(own_json.dump(switched([[3, 4]])))
    raw = io.TextIOWrapper(io.BytesIO(Path(report).read_bytes()))
    monkeypatch.setattr(sys, "stdin", raw)
    assert topology_main(["--json", "--from", "-", str(nvlink)]) == 0
    merged = own_json.parse(capsys.readouterr().out)
    assert len(merged.gpus) == 7
    assert set(merged.sources) == {"topo -m", "test"}


def test_files_need_no_option(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a file named without --from is read as with it, wherever the options stand.

    Without a command the matrix and its legend are printed, and nothing else. A word that is
    neither a command nor a file is still an unknown command.
    """
    for command in ([], ["--csv"], ["check"], ["pick", "-k", "2"]):
        status = topology_main([*command, "--from", report])
        said = capsys.readouterr()
        assert (topology_main([*command, report]), capsys.readouterr()) == (status, said)
    assert topology_main([report]) == 0
    assert capsys.readouterr() == (Path(report).read_text(), "")
    assert topology_main([report, "--csv"]) == 0
    assert capsys.readouterr().out.startswith(",GPU0")
    for words, complaint in (
        (["chek"], "did you mean check?"),
        (["--json", "check"], "check is a command: it comes first"),
        (["check", "nowhere.txt"], "nowhere.txt: cannot be read"),
    ):
        assert topology_main(words) == 2
        assert complaint in capsys.readouterr().err


def test_check_says_by_its_status(
    machine: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: check finds what is wrong with a machine, names the devices, and nothing else.

    0 is clean, 1 has findings, so that a prolog script can use it.
    """
    described, topology = machine
    path = tmp_path / "machine.json"
    path.write_text(own_json.dump(topology))
    expected = described["expect"]["findings"]
    assert topology_main(["check", str(path), "--json"]) == bool(expected)
    found = json.loads(capsys.readouterr().out)
    assert {finding["code"]: finding["subjects"] for finding in found} == expected
    assert topology_main(["check", str(path)]) == bool(expected)
    shown = " ".join(capsys.readouterr().out.split())
    for finding in found:
        parts = finding["summary"], ", ".join(finding["subjects"]), finding["evidence"]
        assert all(" ".join(part.split()) in shown for part in (*parts, finding["remedy"]))
    places = [shown.index(finding["code"]) for finding in found]
    assert places[:1] == sorted(places)[:1] and (found or "no findings" in shown)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--frob"], "unrecognized arguments: --frob"),
        (["-m"], "-m is nvidia-smi's; python -m topology alone prints the matrix of topo -m"),
        (["show", "map.json"], "no command 'show'; python -m topology map.json shows the map"),
        (["topo", "-m"], "topology alone prints the matrix of topo -m"),
        (["--from", "no-such-file"], "no-such-file: cannot be read: No such file"),
        (["--from", f"{__file__}x"], f"did you mean {__file__}?"),
        (["--from", "check"], "check is a command: it comes first"),
        (["pick", "--from", "REPORT"], "required: -k"),
        (["pick", "-k", "9", "--from", "REPORT"], "9 GPUs wanted, 7 to choose from"),
        (["pick", "-k", "x", "--from", "REPORT"], "'x' is no whole number"),
        (["pick", "-k", "2", "-n", "0", "--from", "REPORT"], "0 sets; at least 1"),
        (["pick", "-k", "2", "--objective", "tree", "--from", "REPORT"], "invalid choice: 'tree'"),
        (["pick", "-k", "2", "--exclude", "8", "--from", "REPORT"], "exclude; GPUs here: GPU0"),
        (["pick", "-k", "2", "--busy", "--from", "REPORT"], "no source says which GPUs are busy"),
        (["export", "pdf", "--from", "REPORT"], "invalid choice: 'pdf'"),
        (["export", "dot", "-k", "2", "--from", "REPORT"], "takes no choice of GPUs"),
        (["export", "nccl-xml", "--from", "REPORT"], "without bus id"),
        (["measure", "--from", "REPORT"], "no measured matrix"),
        (["measure", "--bytes", "2T"], "'2T' is no size"),
        (["--svg", "no/such/folder.svg", "--from", "REPORT"], "folder.svg: cannot be written"),
        (["--json", "--csv"], "not allowed with argument"),
        (["--from", sys.executable], f"{sys.executable}: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    argv: list[str], said: str, report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: whatever is wrong, one line on stderr names it, stdout is empty, the status is 2."""
    argv = [report if word == "REPORT" else word for word in argv]
    assert topology_main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_links_and_peers_are_shown_where_no_path_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a map of NVLink status or peer access alone shows these, not question marks."""
    for text, lines in (
        (NVLINK, [f"GPU{n}  1 NVLink of 25.00 GB/s each way" for n in (0, 1)]),
        (P2P, ["     GPU0 GPU1", "GPU0    -  CNS", "GPU1  CNS    -"]),
    ):
        path = tmp_path / "text.txt"
        path.write_text(text)
        assert topology_main([str(path)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("no source states what connects") and "?" not in shown
        assert all(line in shown.splitlines() for line in lines), shown


def test_text_of_powershell_is_read(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: UTF-16, as Windows redirects it, is the same text."""
    path = tmp_path / "utf16.txt"
    path.write_text(Path(report).read_text(), encoding="utf-16")
    assert topology_main(["--from", str(path)]) == 0
    assert "GPU6" in capsys.readouterr().out


def test_pick_of_the_field_report(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: pick -k 2 says that PIX pairs beat PHB pairs, as text and as JSON."""
    assert topology_main(["pick", "-k", "2", "--from", report]) == 0
    shown = capsys.readouterr().out
    tiers = shown[shown.index("tiers:") :].splitlines()
    assert "[0,1]" in tiers[1]
    assert "[4,5]" in tiers[1]
    assert "1 x PIX" in tiers[1]
    assert "1 x PHB" in tiers[2]
    assert "[0,1] beats [0,3]" in shown and "PHB, a PCIe host bridge" in " ".join(shown.split())
    assert (
        topology_main(["pick", "-k", "2", "--json", "--exclude", "0,GPU1", "--from", report]) == 0
    )
    assert json.loads(capsys.readouterr().out)["picks"][0]["gpus"] == ["GPU3", "GPU4"]


def test_export_takes_the_choice_of_pick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: an ordered export holds the ring order that pick finds, of the GPUs that are left."""
    path = tmp_path / "dgx.json"
    path.write_text(own_json.dump(dgx_1v()))
    assert topology_main(["export", "cuda", "-k", "4", "--exclude", "3", "--from", str(path)]) == 0
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7\n" in capsys.readouterr().out
    # The file may also stand alone, as for the other commands, before the options and after them.
    for words in (["-k", "4", "--exclude", "3", str(path)], [str(path), "-k", "4", "--exclude=3"]):
        assert topology_main(["export", "cuda", *words]) == 0
        assert "CUDA_VISIBLE_DEVICES=4,5,6,7\n" in capsys.readouterr().out
    assert topology_main(["export", "cuda", str(path), "--frob"]) == 2
    assert "unrecognized arguments: --frob" in capsys.readouterr().err
    for name, entry in EXPORTS.items():
        status = topology_main(["export", name, "--from", str(path)])
        assert status == (2 if name in ("nccl-xml", "rankfile", "mpich", "slurm") else 0), (
            entry.about
        )
        capsys.readouterr()


def test_pictures_are_written(report: str, tmp_path: Path) -> None:
    """Rule: --svg and --html write their files and the matrix stays away."""
    svg, page = tmp_path / "map.svg", tmp_path / "map.html"
    assert topology_main(["--svg", str(svg), "--html", str(page), "--from", report]) == 0
    assert svg.read_text().startswith("<svg") and svg.read_text() in page.read_text()


def test_a_machine_without_gpu_has_a_map(run: Run) -> None:
    """Rule: here, whatever here is, the map is shown; what is missing is a note on stderr."""
    done = run(sys.executable, "-m", "topology")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())


def test_start_loads_no_heavy_library(report: str, run: Run) -> None:
    """Rule: the matrix, and knowing all rooms, needs no other library."""
    script = (
        "import sys, topology.diagnostics, topology.sources.nvml; "
        "from tests.command import topology_main; status = topology_main(sys.argv[1:]); "
        "heavy = {'numpy', 'networkx', 'rich', 'matplotlib', 'pynvml', 'mpi4py', 'yaml'}; "
        "sys.exit(f'{heavy & set(sys.modules)}' if heavy & set(sys.modules) else status)"
    )
    done = run(sys.executable, "-c", script, "--from", report)
    assert done.returncode == 0, done.stderr


def test_rows_are_sent_to_their_reader_and_maps_to_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a file of the other kind is recognised, and the command that reads it is named."""
    path = tmp_path / "file"
    measured = to_jsonl(records(["ring"], [2], [1024])).decode()
    texts = [measured, logs.OLD, logs.BITWISE, logs.OSU, logs.IMB, json.dumps(logs.DOCUMENT)]
    for text in texts:
        path.write_text(text)
        assert topology_main(["--from", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "python -m reports show FILE reads them" in said
    path.write_text(own_json.dump(dgx_1v()))
    assert reports_main(["show", str(path)]) == 2
    assert "which python -m topology --from reads" in capsys.readouterr().err


def test_matrices_of_two_machines_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: two files of one kind that disagree about a pair, or have other GPUs, are refused.

    A matrix of topo -mp tells no NVLinks, and does not disagree.
    """
    texts = {
        "same": "GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n",
        "fewer_links": "GPU0 GPU1\nGPU0 X NV16\nGPU1 NV16 X\n",
        "no_nvlinks_told": "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
        "more_gpus": "GPU0 GPU1 GPU2\nGPU0 X NV18 NV18\nGPU1 NV18 X NV18\nGPU2 NV18 NV18 X\n",
    }
    first, *_ = paths = [tmp_path / name for name in ("first", *texts)]
    for path, text in zip(paths, (texts["same"], *texts.values()), strict=True):
        path.write_text(text)
    refusals = {path.name: topology_main(["check", str(first), str(path)]) for path in paths[1:]}
    assert refusals == {"same": 0, "fewer_links": 2, "no_nvlinks_told": 0, "more_gpus": 2}
    err = capsys.readouterr().err
    assert "GPU0 and GPU1, nvlinks: 18 and 16" in err
    assert "other GPUs: 2 and 3" in err
    assert err.count("give one machine at a time") == 2


def test_check_is_quiet_about_known_findings(
    report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: check --baseline FILE leaves out what is in FILE and unchanged, and nothing else.

    A finding whose evidence has changed is printed; one that is gone is a note.
    """
    argv, baseline = ["check", "--gpus", "8", report], tmp_path / "known.json"
    assert topology_main([*argv, "--json"]) == 1
    every = json.loads(capsys.readouterr().out)
    baseline.write_text(json.dumps(every))
    known = [*argv, "--baseline", str(baseline)]
    assert topology_main(known) == 0
    out = capsys.readouterr().out
    assert out.startswith("no findings: ") and f"; {len(every)} known left out" in out
    changed = {**every[0], "evidence": "another"}
    baseline.write_text(json.dumps([changed, *every[1:]]))
    assert topology_main([*known, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == every[:1]
    assert f"known.json: {every[0]['code']} (machine) has changed, or is no longer found" in err
    for text in ("{", '{"a": 1}', "[1]", '[{"code": 1}]', "\x00"):
        baseline.write_text(text)
        assert topology_main(known) == 2
        assert "no file of findings; write it with" in capsys.readouterr().err


def test_check_finds_what_is_unlike_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: check --like FILE finds devices, facts and links unlike FILE's, and else nothing.

    What only one of the maps knows is not compared.
    """
    texts = {
        "golden": "GPU0 GPU1 GPU2\nGPU0 X NV2 NV1\nGPU1 NV2 X NV1\nGPU2 NV1 NV1 X\n",
        "weak": "GPU0 GPU1 GPU2\nGPU0 X NV1 NV1\nGPU1 NV1 X NV1\nGPU2 NV1 NV1 X\n",
        "fewer": "GPU0 GPU1\nGPU0 X NV2\nGPU1 NV2 X\n",
    }
    paths = {name: tmp_path / name for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)

    def found(here: str, there: str) -> dict[str, tuple[list[str], str]]:
        topology_main(["check", "--json", "--like", str(paths[there]), str(paths[here])])
        every = json.loads(capsys.readouterr().out)
        return {one["code"]: (one["subjects"], one["evidence"]) for one in every}

    assert found("golden", "golden") == {}
    link = {"unlike-links": (["GPU0-GPU1"], "NV1 here, NV2 there: GPU0-GPU1")}
    assert found("weak", "golden").items() >= link.items()
    assert found("fewer", "golden") == {"unlike-missing": (["GPU2"], "gpu: GPU2")}
    assert found("golden", "fewer") == {"unlike-more": (["GPU2"], "gpu: GPU2")}
    assert topology_main(["check", "--like", str(tmp_path / "none"), str(paths["weak"])]) == 2
    assert "none: cannot be read" in capsys.readouterr().err


def test_facts_of_equal_machines_are_compared_where_both_have_them() -> None:
    """Rule: other clocks, drivers and devices at a bus id are found; names and loads are not."""

    def machine(driver: str, *hz: float, **facts: str | float) -> Topology:
        gpus = (
            Device(
                f"GPU{n}", Kind.GPU, n, busid=f"0000:0{9 - n}:00.0",
                facts=(Fact("clock_memory_max_hz", one, "x"),
                       *(Fact(name, value, "x") for name, value in facts.items())),
            )
            for n, one in enumerate(hz)
        )  # fmt: skip
        return Topology(tuple(gpus), facts=(Fact("driver_version", driver, "x"),))

    golden = machine("570.1", 1.2e9, 1.2e9, power_w=90.0)
    assert differences(golden, machine("570.1", 1.2e9, 1.2e9, power_w=300.0, vbios="9")) == []
    (one,) = differences(machine("575.2", 1.2e9, 1.1e9), golden)
    assert one.code == "unlike-facts" and one.subjects == ("GPU1", "machine")
    assert "driver_version 575.2 here, 570.1 there: machine" in one.evidence
    assert "clock_memory_max_hz 1.1 GHz here, 1.2 GHz there: GPU1" in one.evidence


def test_check_counts_devices(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: check --gpus N has status 1 with another number of GPUs, for a scheduler's prolog."""
    status = topology_main(["check", "--json", report])
    before = json.loads(capsys.readouterr().out)
    assert topology_main(["check", "--json", "--gpus", "7", report]) == status
    assert json.loads(capsys.readouterr().out) == before
    assert topology_main(["check", "--json", "--gpus", "8", report]) == 1
    assert json.loads(capsys.readouterr().out)[0]["summary"] == "7 GPUs instead of 8"


@pytest.mark.parametrize("name", EXPORTS)
def test_a_machine_without_the_gpu_of_an_export_is_status_3(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: as of pick, a GPU that this machine lacks is status 3, and one that a file lacks is 2.

    Formats that need none are written.
    """
    bare = Topology((Device("HOST", Kind.HOST),), (), (), ())
    monkeypatch.setattr(cli, "gather", lambda files: (bare, ()))
    needs = EXPORTS[name].gpus
    assert topology_main(["export", name]) == (status.MISSING if needs else status.GOOD)
    err = capsys.readouterr().err
    assert ("this machine has no GPU for " + name in err) == needs and err.count("\n") <= 1
    file = tmp_path / "map.json"
    file.write_text(own_json.dump(bare))
    assert topology_main(["export", name, "--from", str(file)]) == (2 if needs else 0)
