# SPDX-License-Identifier: Apache-2.0
# backends: none
"""tools/check_numbers.py: figures of documents are those of rows; one without a row is found by name."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = """
[constants]
"README.md" = ["100 us"]

[figures.read]
table = "pages-gpu"
files = "*-h200x2-*"
metric = "GB/s"
text = "{value:.0f python/read/4096x16384} GB/s"

[figures.pages]
table = "pages-gpu"
files = "*-h200x2-*"
metric = "GB/s"
header = ["pages", "Headrace", "NIXL", "times NIXL"]
cells = ["$what", "{value python/$case}", "{peer_value python/$case}", "{ratio:.2f python/$case}"]
lines = [{ what = "4 KiB", case = "read/4096x16384" }]

[figures.workshop]
table = "workshop"
metric = "minutes"
header = ["stage", "before", "after"]
cells = ["$case", "{value:.1f first $case}", "{value:.1f $case}"]
lines = [{ case = "demo/cold" }]

[figures.gone]
table = "pages-gpu"
text = "{value read/512x1}"
"""
CLEAN = """# A page
It reads at <!-- figure read -->309 GB/s<!-- /figure -->, after 100 us of looking, at most 2 ms, in `0.5 us`.

<!-- figures pages -->
| pages | Headrace | NIXL | times NIXL |
| --- | --- | --- | --- |
| 4 KiB | 309 | 1.10 | 281.35 |

Rows: 2026-01-02-h200x2-pages.jsonl (2222222). Measured on: two GPUs.
<!-- /figures -->

```
3.5 GB/s, <!-- figure read --> in code is an example
```
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_numbers", ROOT / "tools" / "check_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(value, peer_value=None, date="2026-01-02", case="python/read/4096x16384", peer="nixl 1.5.1", **more):
    fields = {
        "date": date,
        "commit": "2222222222",
        "machine": "two GPUs",
        "command": "bench",
        "table": "pages-gpu",
        "case": case,
    }
    fields |= {"metric": "GB/s", "value": value, "peer": peer, "peer_value": peer_value}
    return fields | {"ratio": peer_value and round(value / peer_value, 2)} | more


@pytest.fixture
def check(tool, tmp_path, capsys):
    """Writes a document beside rows and definitions, runs the program; gives exit code and output."""
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (tmp_path / "bench" / "figures.toml").write_text(FIGURES)
    rows = [
        row(309.37, 0.63, peer="nixl 1.5.1"),
        row(309.37, 1.0996, peer="nixl 2 threads 1.5.1"),
        row(314.0, 1.2, date="2026-01-01"),
    ]
    (results / "2026-01-02-h200x2-pages.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (results / "2026-01-03-cpu2-pages.jsonl").write_text(json.dumps(row(5.0, 1.0, date="2026-01-03")) + "\n")

    def run(text, *arguments):
        (tmp_path / "README.md").write_text(text)
        code = tool.main(["--root", str(tmp_path), *arguments])
        return code, capsys.readouterr().out

    run.root = tmp_path
    return run


def test_a_document_whose_figures_are_those_of_the_latest_rows_passes(check):
    assert check(CLEAN) == (0, "numbers: 1 documents, 0 problems\n")


def test_a_stale_number_is_named_with_what_the_rows_say(check):
    code, out = check(CLEAN.replace("309 GB/s", "314 GB/s"))
    assert code == 1
    assert "README.md:2: read: '314 GB/s', the rows say '309 GB/s'" in out
    code, out = check(CLEAN.replace("281.35", "290.00"))
    assert code == 1 and "README.md:4: pages: differs from its rows: run check_numbers.py --write" in out


def test_an_undefined_name_and_a_missing_row_fail_by_name(check):
    code, out = check(CLEAN + "It is <!-- figure speed -->fast<!-- /figure -->.\n")
    assert code == 1 and "README.md:15: speed: bench/figures.toml does not define it" in out
    code, out = check(CLEAN + "It is <!-- figure gone -->3<!-- /figure -->.\n")
    assert code == 1 and "README.md:15: gone: no row has case read/512x1, table pages-gpu" in out


@pytest.mark.parametrize(
    "loose",
    [
        "343 GB/s",
        "343 / 341\nGB/s",
        "7.5 us",
        "12 µs",
        "99 percent",
        "12 %",
        "1.3 times",
        "3 times NIXL",
        "0.5 to 5 ms",
        "2.4 s",
        "200 us",
    ],
)
def test_a_measured_figure_outside_of_marks_fails(check, loose):
    code, out = check(CLEAN + f"Here it takes {loose} or so.\n")
    assert code == 1
    assert "README.md:15: " in out and "is a measured figure outside of <!-- figure NAME -->" in out


def test_a_table_of_figures_outside_of_marks_fails(check):
    code, out = check(CLEAN + "| page | GB/s |\n|---|---|\n| 4 KiB | 343 |\n")
    assert code == 1 and "README.md:15: '| page | GB/s |' is a measured figure" in out


@pytest.mark.parametrize(
    "constant", ["2 ms", "100 us", "5 s", "4096 bytes", "8 times", "`3.5 GB/s`", "at most 128 KiB"]
)
def test_constants_and_code_are_no_figures(check, constant):
    assert check(CLEAN + f"It is {constant}.\n")[0] == 0


def test_a_constant_that_left_the_text_fails(check):
    code, out = check(CLEAN.replace("100 us", "long"))
    assert code == 1 and "README.md: [constants] has '100 us', which is not in the text" in out


def test_marks_without_a_counterpart_or_of_the_other_kind_fail(check):
    code, out = check(CLEAN + "<!-- figure read -->309 GB/s\n")
    assert code == 1 and "README.md:15: <!-- figure read --> has no counterpart" in out
    code, out = check(CLEAN + "<!-- figure pages -->3<!-- /figure -->\n")
    assert code == 1 and "README.md:15: pages: it is a table" in out


def test_write_fills_the_marks_and_nothing_else(check):
    empty = CLEAN.replace("309 GB/s", "").replace("| 4 KiB | 309 | 1.10 | 281.35 |\n", "")
    assert check(empty, "--write")[0] == 0
    assert (check.root / "README.md").read_text() == CLEAN


def test_before_and_after_are_the_first_row_and_the_latest(check):
    name, text = "2026-01-04-cpu2-workshop.jsonl", "<!-- figures workshop -->\n<!-- /figures -->\n"
    rows = [
        row(10.0 - day, date=f"2026-01-0{day}", case="demo/cold", table="workshop", metric="minutes")
        for day in (1, 5)
    ]
    path = check.root / "bench" / "results" / name
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    check(CLEAN + text, "--write")
    assert "| demo/cold | 9.0 | 5.0 |" in (check.root / "README.md").read_text()
    path.write_text(json.dumps(rows[1]) + "\n")
    check(CLEAN + text, "--write")
    assert "| demo/cold | not measured | 5.0 |" in (check.root / "README.md").read_text()


def test_the_notes_of_this_checkout_say_what_their_rows_say(tool, capsys):
    notes = sorted(map(str, (ROOT / "bench" / "notes").glob("*.md")))
    assert tool.main(["--root", str(ROOT), *notes]) == 0, capsys.readouterr().out
