# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The pictures of bench/plots show the rows of bench/results. The tests read the pictures and do not draw
them, because that needs matplotlib."""

import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLOTS = ROOT / "bench" / "plots"


def load(name):
    spec = importlib.util.spec_from_file_location(name, PLOTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages_gpu():
    return load("pages_gpu")


@pytest.fixture(scope="module")
def coll_cpu():
    return load("coll_cpu")


def row(
    case, value, date="2026-01-01T00:00:00Z", table="pages-gpu", peer=None, peer_value=None, metric="GB/s"
):
    return {
        "date": date,
        "commit": "0123456789ab",
        "machine": "two GPUs",
        "table": table,
        "case": case,
        "metric": metric,
        "value": value,
        "peer": peer,
        "peer_value": peer_value,
    }


def write_rows(folder, *rows, label="h200x2"):
    path = folder / f"2026-01-01-{label}-x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_number_of_the_picture_is_a_row(pages_gpu):
    svg = ElementTree.parse(PLOTS / "pages_gpu.svg")
    shown = json.loads(next(e.text for e in svg.iter() if e.tag.endswith("}description")))
    held = {}
    for table in ("pages-gpu", "ceilings-gpu"):
        for _, r in pages_gpu.rows(table):
            found = re.match(r"(?:python/)?(read|write)/(\d+)x\d+(?:/bare_.*)?$", r["case"])
            if found and r["metric"] == "GB/s":
                held.setdefault((found[1], found[2]), set()).update({r["value"], r["peer_value"]})
    for op in ("read", "write"):
        assert set(shown[op]) == {"headrace", "nixl", "ceiling"}
        for points in shown[op].values():
            assert len(points) >= 6
            assert all(value in held[op, size] for size, value in points.items())


def test_the_picture_shows_the_latest_rows(pages_gpu):
    svg = ElementTree.parse(PLOTS / "pages_gpu.svg")
    shown = next(e.text for e in svg.iter() if e.tag.endswith("}description"))
    assert shown == pages_gpu.Picture().description(), "run bench/plots/pages_gpu.py"


def test_the_latest_row_of_a_case_counts_and_the_better_of_the_peers_settings(pages_gpu, tmp_path):
    later = "2026-01-02T00:00:00Z"
    write_rows(
        tmp_path,
        row("python/read/4096x16384", 7.0, later, peer="nixl 2 threads 1.2", peer_value=3.0),
        row("python/read/4096x16384", 7.0, later, peer="nixl 1.2", peer_value=2.0),
        row("python/read/4096x16384", 9.0, peer="nixl 1.1", peer_value=8.0),
        row("read/4096x16384", 11.0),
        row("python/read/4096x16384", 5.0, metric="ratio", peer="nixl 1.1", peer_value=1.0),
        row("read/4096x16384/bare_kernel_sm64", 12.0, later, table="ceilings-gpu"),
        row("read/4096x16384/bare_copy_engine", 13.0, later, table="ceilings-gpu"),
        row("read/4096x16384/bare_copy_engine", 97.0, table="ceilings-gpu"),
        row("read/4096x16384/default", 99.0, later, table="ceilings-gpu"),
        row("read/512x16384/bare_kernel_sm64", 98.0, later, table="ceilings-gpu"),
    )
    picture = pages_gpu.Picture(tmp_path)
    assert picture.points["read"] == {"headrace": {4096: 7.0}, "nixl": {4096: 3.0}, "ceiling": {4096: 13.0}}
    assert not picture.points["write"]["headrace"]
    assert "2026-01-01-h200x2-x.jsonl (0123456)" in picture.small_print()
    assert "NIXL 1.2 from Python" in picture.small_print()


def test_without_rows_of_both_the_error_names_the_command_that_makes_them(
    pages_gpu, tmp_path, monkeypatch, capsys
):
    write_rows(tmp_path, row("python/read/4096x16384", 7.0, peer="nixl 1.2", peer_value=3.0), label="another")
    pages = pages_gpu.Picture
    monkeypatch.setattr(pages_gpu, "Picture", lambda: pages(tmp_path))
    assert pages_gpu.main([str(tmp_path / "no.svg")]) == 1
    assert "bench/compare_nixl.py --device cuda" in capsys.readouterr().err
    assert not (tmp_path / "no.svg").exists()


def test_the_picture_of_collectives_shows_the_latest_rows(coll_cpu):
    svg = ElementTree.parse(PLOTS / "coll_cpu.svg")
    shown = next(e.text for e in svg.iter() if e.tag.endswith("}description"))
    assert shown == coll_cpu.Picture().description(), "run bench/plots/coll_cpu.py"


def test_of_collectives_the_latest_row_of_two_ranks_counts(coll_cpu, tmp_path):
    def of(case, value, date, **changes):
        return {**row(case, value, date, "coll", "gloo", 2 * value, "time"), **changes}

    earlier, later = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    (tmp_path / "2026-01-02-cpu2-coll.jsonl").write_text(
        "".join(
            json.dumps(each) + "\n"
            for each in (
                of("python/all_reduce/8KiB/2", 3.0, later),
                of("python/all_reduce/8KiB/2", 9.0, earlier),
                of("python/all_reduce/8/2", 1.0, earlier),
                of("python/all_reduce/8KiB/3", 99.0, later),
                of("python/all_reduce/16MiB/2/200mbit", 99.0, later),
                of("python/barrier/0/2", 99.0, later),
                of("python/all_gather/4MiB/2", 99.0, later, peer=None),
            )
        )
    )
    picture = coll_cpu.Picture(tmp_path)
    assert picture.points["all_reduce"] == {"headrace": {8: 1.0, 8192: 3.0}, "gloo": {8: 2.0, 8192: 6.0}}
    assert not picture.points["all_gather"]["headrace"]
    assert "2026-01-02-cpu2-coll.jsonl (0123456)" in picture.small_print()
