# SPDX-License-Identifier: Apache-2.0
# backends: none
"""tools/support_table.py: the tables of docs/collectives.md are those of tests/fixtures/comm_support.tsv."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = """backend\toperation\ttypes\treductions
host\tall_reduce\tfloat32\tsum,avg
host\tall_reduce\tint8,bool\tall
host\treduce\tfloat32\tsum,avg
host\treduce\tint8,bool\tall
host\treduce_scatter_quantized\tfloat32\tsum
host\tscatter\tall\t-
host\tput\tall\t-
host\tatomic_add\tint32,int64\t-
host\tbarrier\t-\t-
nccl\tall_reduce\tfloat32\tsum
nccl\treduce\tfloat32\tsum
nccl\tscatter\tall\t-
nccl\tbarrier\t-\t-
oneccl\tall_reduce\tint8\tmin,max
oneccl\treduce\tint8\tmin,max
oneccl\tscatter\tall\t-
p2p\tall_reduce\tint8\tall
p2p\treduce\tint8\tall
p2p\tscatter\tall\t-
"""
TABLES = """
| operation | `host`, `lazy` | `nccl`, `ncclx` | `oneccl` | `p2p` |
| --- | --- | --- | --- | --- |
| `all_reduce`, `reduce` | as below | as below | as below | as below |
| `reduce_scatter_quantized` | float32: sum | no | no | no |
| `scatter` | every type | every type | every type | every type |
| `put` | every type | no | no | no |
| `atomic_add` | int32, int64 | no | no | no |
| `barrier` | yes | yes | no | no |
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("support_table", ROOT / "tools" / "support_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tests" / "fixtures").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "fixtures" / "comm_support.tsv").write_text(SUPPORT)
    (tmp_path / "docs" / "collectives.md").write_text(
        "# A page\n\n<!-- support -->\n<!-- /support -->\n\nThe rest.\n"
    )
    return tmp_path


def test_the_tables_are_written_between_the_marks(tool, root):
    assert tool.main(["--write", "--root", str(root)]) == 0
    text = (root / "docs" / "collectives.md").read_text()
    assert TABLES in text and text.endswith("<!-- /support -->\n\nThe rest.\n")
    assert "| float32 | sum, avg | sum | none | none |" in text
    assert "| int8 | all | none | min, max | all |" in text
    assert "| bool | all | none | none | none |" in text
    assert tool.main(["--root", str(root)]) == 0


def test_tables_of_another_version_are_found(tool, root, capsys):
    assert tool.main(["--root", str(root)]) == 1
    assert capsys.readouterr().out.startswith(
        "docs/collectives.md:3: differs from tests/fixtures/comm_support.tsv: run "
    )
    tool.main(["--write", "--root", str(root)])
    path = root / "tests" / "fixtures" / "comm_support.tsv"
    path.write_text(path.read_text().replace("nccl\treduce\tfloat32\tsum\n", ""))
    assert tool.main(["--root", str(root)]) == 1


def test_a_document_without_marks_is_found(tool, root, capsys):
    (root / "docs" / "collectives.md").write_text("# A page\n")
    assert tool.main(["--root", str(root)]) == 1
    assert "0 marks <!-- support -->, one is expected" in capsys.readouterr().out
