"""The page as a text: what is in it, what can never get out of it, and how large it gets."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from busbar.canvas import COLOURS, colours
from busbar.errors import MissingFile, ReportError
from reports.analysis.machine import read_machine
from reports.figures.series import fitted, run_names
from reports.page import page
from reports.page.document import _plotly
from reports.page.markup import hash_of, json_script, table
from reports.page.method import method_part, tiles
from reports.page.payload import payload, reduced
from reports.records.measurement import Measurement, Run
from tests.reports.runs import EVIL, TOPO, cli, records, rows, saved


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(text)
    return parser.found


@pytest.fixture(scope="module")
def made() -> str:
    """A page with everything in it."""
    return page(rows(records()), limit=5e9).decode()


def test_a_page_is_one_file(made: str) -> None:
    """Rule: nothing is fetched: no address in an element, a policy that forbids fetching."""
    for _, attributes in _elements(made):
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (name, value)
        assert not any(name.startswith("on") for name in attributes)
    policies = [
        a["content"]
        for tag, a in _elements(made)
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1 and policies[0] is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data: blob:"
    assert "unsafe" not in rules["script-src"] and "http" not in policies[0]


def test_every_script_is_named_by_its_hash(made: str) -> None:
    """Rule: what the policy allows is what stands in the page, letter by letter, and no more."""
    (packed,) = re.findall(r'<script type="application/gzip"[^>]*>(.*?)</script>', made, re.DOTALL)
    (own,) = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    scripts = [gzip.decompress(base64.b64decode(packed)).decode(), own]
    allowed = re.findall(r"&#x27;(sha256-[^;]+)&#x27;", made)
    assert scripts[0] == _plotly() and len(made) < 2.6e6  # the bundle alone is 4.8 MB
    assert [hash_of(s).strip("'") for s in scripts] == allowed


def test_parts_and_their_headings(made: str) -> None:
    """Rule: findings, measurements, method and the twelve rules are there, each part named."""
    found = _elements(made)
    sections = [a["aria-labelledby"] for tag, a in found if tag == "section"]
    assert sections == ["measurements", "answer", "summary", "findings", "rows", "method"]
    assert set(sections) <= {a.get("id") for _, a in found}
    assert "twelve rules" in made and "12. " in made and "ranks_per_node" in made
    assert [a.get("lang") for tag, a in found if tag == "html"] == ["en"]


@given(st.text(max_size=60))
def test_data_cannot_end_its_element(text: str) -> None:
    """Rule: whatever a file says, the data element has no mark of HTML's, and returns it."""
    script = json_script("d", {"text": text, EVIL: [text]})
    inner = script.split(">", 1)[1].rsplit("</script>", 1)[0]
    assert not set(inner) & set("<>&\u2028\u2029")
    assert json.loads(inner) == {"text": text, EVIL: [text]}


@given(st.text(max_size=60))
def test_a_table_is_made_of_text_only(text: str) -> None:
    """Rule: a cell, a heading and a caption make no element of their own."""
    tags = {tag for tag, _ in _elements(table(text, [text], [[text, text]]))}
    assert tags == {"div", "table", "caption", "thead", "tr", "th", "tbody", "td"}


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    """Rule: algorithm, host, library, CPU, file and title are text wherever the page shows them."""
    plain = page(rows(records(["ring"])), title="a").decode()
    evil = page(
        rows(records([EVIL], hosts=[EVIL], library=EVIL, cpu=EVIL, **{EVIL: EVIL}), EVIL),
        title=EVIL, notes=[EVIL],
    ).decode()  # fmt: skip
    kinds = [{tag for tag, _ in _elements(text)} for text in (plain, evil)]
    assert kinds[1] - kinds[0] <= {"li", "details", "summary"}
    assert "<img" not in evil
    assert "window.hit=1</script>" not in evil


def test_the_page_says_what_to_take() -> None:
    """Rule: any page says who is fastest, by size and ranks, and how long the library takes."""
    text = page(rows(records())).decode()
    assert "The fastest of allreduce, float, sum, out-of-place, by size and ranks" in text
    assert "The fastest of allreduce, float, sum, in-place, 4 ranks, by size" in text
    assert 'class="winner"' in text and 'href="#answer"' in text
    one = page(rows(records(ranks=[4], sizes=[1024, 4096]))).decode()
    assert "by size and ranks" not in one and "4 ranks, by size" in one
    alone = page(rows(records(["ring"], [4]))).decode()
    assert 'id="answer"' not in alone and 'href="#answer"' not in alone
    data = payload(rows(records(["ring", "library"], [4], [1024])))
    ratios = [ratio for ratio in data["library"] if ratio is not None]
    assert len(ratios) == 2 and all(ratio == pytest.approx(1.2, rel=0.1) for ratio in ratios)


def test_a_figure_of_several_runs_is_said_to_be_a_mean() -> None:
    """Rule: a figure of the answer that is in no row, as a mean over runs, is explained there."""
    one, two = (rows(records(["ring", "tree"], [4]), f"{name}.jsonl") for name in "ab")
    other = rows(records(["ring", "tree"], [2]), "c.jsonl")
    said = "a figure here is that of the geometric mean of their median times"
    assert said in page([*one, *two]).decode()
    assert said not in page(one).decode() and said not in page([*one, *other]).decode()


def test_the_head_has_machine_collective_ranks_and_the_answer() -> None:
    """Rule: a title says what was measured and where, and a sentence the answer or best figure."""
    head = page(rows(records())).decode().split("<main")[0]
    assert "<h1>allreduce on 2 and 4 ranks, EPYC</h1>" in head
    assert "ring was 1.60 times as fast as library from 1K to 64M" in head
    assert "(allreduce, float, sum, 4 ranks, out-of-place)" in head
    alone = page(rows(records(["ring"], [4]))).decode().split("<main")[0]
    assert "highest busbw" in alone and "ring at 64M" in alone
    named = page(rows(records(["ring"], [4])), title="A name").decode().split("<main")[0]
    assert "<h1>A name</h1>" in named


def test_shared_cores_are_said_first() -> None:
    """Rule: a page with oversubscribed rows says so above everything else; others do not."""
    found = rows(records(["ring"], [4], [1024]))
    crowded = page([replace(found[0], ranks_per_core=2.0), *found[1:]]).decode()
    assert "1 of 2 rows is oversubscribed: 2 ranks per core" in crowded.split("<main")[0]
    assert "oversubscribed" not in page(found).decode().split("<main")[0]


def test_the_answer_is_of_ranks_with_cores_of_their_own() -> None:
    """Rule: the sentence of the head is of a rank count whose ranks shared no cores, if there is
    one; as the figures are.
    """  # noqa: D205
    found = [
        replace(r, ranks_per_core=2.0) if r.ranks == 4 else r
        for r in rows(records(["ring", "library"], [2, 4]))
    ]
    assert "(allreduce, float, sum, 2 ranks, out-of-place)" in page(found).decode()


def test_cards_are_in_order() -> None:
    """Rule: cards stand by collective and ranks, not as files happen to come."""
    found = [
        replace(r, collective=name, ranks=ranks)
        for name, ranks in (("reduce", 2), ("allreduce", 16), ("allreduce", 4))
        for r in rows(records(["ring"], [4], [1024]))
    ]
    heads = re.findall(r'<li class="tile"><h3>(\w+), float, sum, (\d+) ranks', tiles(found))
    assert heads == [("allreduce", "4"), ("allreduce", "16"), ("reduce", "2")]


def test_what_runs_share_stands_once() -> None:
    """Rule: of several runs the environment has what is the same once, and columns for the rest."""
    found = [
        r
        for n in range(3)
        for r in rows(records(["ring"], [4], [1024], started=f"day {n}"), f"f{n}")
    ]
    text = method_part(found, run_names(found), None)
    same, other = text.split("<caption>Environment: what differs")
    assert same.count("MPICH 5") == 1 and "EPYC" in same and "all runs" in same
    assert "EPYC" not in other.split("</table>")[0]
    assert [f"day {n}" in other for n in range(3)] == [True] * 3
    assert "<td>f0</td>" not in other  # the heading says it
    assert same.count("EPYC") == 1  # as cpu, and not again as a device


@pytest.mark.parametrize(("sizes", "drawn"), [(2, False), (3, False), (4, True)])
def test_no_line_is_fitted_through_three_points(sizes: int, drawn: bool) -> None:
    """Rule: a fit takes four sizes at least; through three points nearly any line goes."""
    found = rows(records(["ring"], [4], [1024 << n for n in range(sizes)]))
    assert (fitted([r for r in found if r.placement == "out"]) is not None) == drawn


def test_a_machine_is_drawn_with_its_findings(tmp_path: Path) -> None:
    """Rule: the picture has a box for each device, a text that says the same, and the matrices."""
    file = tmp_path / "topo.txt"
    file.write_text(TOPO)
    text = page(rows(records()), read_machine([file])).decode()
    assert text.count('<g class="box gpu">') == 2 and '<g class="link nvlink">' in text
    assert "Devices and links as text" in text
    assert [a["role"] for tag, a in _elements(text) if tag == "svg"] == ["img"]
    with pytest.raises(MissingFile, match="none"):
        read_machine([tmp_path / "none"])


def test_who_is_slow_is_said(tmp_path: Path) -> None:
    """Rule: what ranks' own times and a measured matrix accuse stands among the findings."""
    ids = range(6)
    pairs = [
        {"a": f"RANK{a}", "b": f"RANK{b}", "name": "bandwidth" + part, "source": "measured",
         "value": (2e9 if 3 in (a, b) else 1e10) * factor}
        for a in ids for b in ids if a != b for part, factor in (("", 1), ("_low", 0.99),
        ("_high", 1.01))
    ]  # fmt: skip
    devices = [{"id": "HOST", "kind": "host"}]
    devices += [{"id": f"RANK{n}", "kind": "rank", "index": n, "parent": "HOST"} for n in ids]
    document = {"busbar_topology": 1, "sources": ["measured"], "devices": devices, "pairs": pairs}
    file = tmp_path / "m.json"
    file.write_text(json.dumps(document))
    machine = read_machine([file])
    made = page(rows(records()), machine).decode()
    assert "<strong>Slow: rank 3" in made and 'href="#machine"' in made
    without = page(rows(records())).decode()
    assert "<strong>Slow" not in without and 'href="#machine"' not in without


def test_rows_are_numbers_and_series_words() -> None:
    """Rule: a row's figures, its bound from its own limit, and sorted iterations come back."""
    found = rows(records(["ring"], [4], [1024]))
    data = payload(found, limit=1.0)
    assert data["of"] == [0, 1] and data["size"] == [1024, 1024]
    assert [s["placement"] for s in data["series"]] == ["out", "in"]
    for n, row in enumerate(found):
        assert data["time"][n] == pytest.approx(row.time_s, rel=1e-5)
        assert row.limit_s and row.time_s and row.busbw_bytes_per_s
        bound = row.busbw_bytes_per_s * row.time_s / row.limit_s
        assert data["bound"][n] == pytest.approx(bound, rel=1e-5)
        assert data["samples"][n] == pytest.approx(sorted(row.times_s), rel=1e-5)


def test_runs_have_short_names_that_differ() -> None:
    """Rule: the file's name, more of its path if that is shared, the table's number in a file."""

    def named(*sources: str) -> list[str]:
        runs = [Run(s, n, "x") for n, s in enumerate(sources)]
        kept = [
            Measurement(run=r, line=1, collective="allreduce", size=8, time_s=1.0) for r in runs
        ]
        return list(run_names(kept).values())

    assert named("/a/x.jsonl", "/a/y.jsonl") == ["x.jsonl", "y.jsonl"]
    assert named("/a/b/x", "/a/c/x") == ["b/x", "c/x"]
    assert named("x", "x") == ["x #0", "x #1"]


def test_large_runs_are_reduced_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: rows of one thing become one, with all iterations; what does not fit is counted."""
    run, out = tmp_path / "run.jsonl", tmp_path / "page.html"
    saved(run, records(["ring"], [4], [1024]) * 3)
    monkeypatch.setattr("reports.page.payload.MOST_ROWS", 5)
    cli("html", run, "--out", out)
    text = out.read_text()
    assert "6 rows: those that measured one thing are one" in text and '"n":[90,90]' in text
    found = rows(records())
    kept, said = reduced(found)
    assert kept == found[:5] and said == "of 64 rows the first 5 are in this page"
    assert reduced(found[:5]) == (found[:5], "")


def test_distributions_share_a_budget() -> None:
    """Rule: pages do not grow with iterations: quantiles, largest sizes first, rest counted."""
    row = rows(records(["ring"], [4], [1024]))[0]
    times = tuple(1e-6 * n for n in range(1, 21))
    data = payload([replace(row, size=n, times_s=times) for n in range(1, 28_001)])
    assert sum(len(s) for s in data["samples"] if s) <= 300_000
    assert data["samples"][-1] and data["samples"][0] is None
    assert data["samplesLeftOut"] == sum(s is None for s in data["samples"])
    assert data["samples"][-1][0] == pytest.approx(1e-6) and data["samples"][-1][
        -1
    ] == pytest.approx(2e-5)


NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(NAMES)
def test_colours_differ_as_long_as_there_are_some(names: list[str]) -> None:
    """Rule: seven algorithms have seven colours, whatever their order; the library's is its own.

    An algorithm alone has the same colour in every run, so that figures compare.
    """
    found = colours([*names, "library"])
    assert found == colours(["library", *reversed(names)])
    assert found["library"] == len(COLOURS) - 1
    others = [p for name, p in found.items() if name != "library"]
    assert len(set(others)) == min(len(others), len(COLOURS) - 1)
    assert all(colours([name])[name] == colours([name, "library"])[name] for name in names)


def test_the_command(tmp_path: Path) -> None:
    """Rule: the page is named on stdout; a bad ending, map or run costs one line and no file."""
    run, out = tmp_path / "run.jsonl", tmp_path / "page.html"
    saved(run, records())
    assert cli("html", run, "--out", out, "--limit", "5GB/s").out.strip() == str(out)
    assert out.read_bytes().startswith(b"<!DOCTYPE")
    out.unlink()
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for extra in (
        ["--out", str(tmp_path / "page.txt")],
        ["--out", str(out), "--topology", str(bad)],
    ):
        assert cli("html", run, *extra, status=2).err.count("\n") == 1
    assert not out.exists()
    with pytest.raises(ReportError, match="to show"):
        page([])
