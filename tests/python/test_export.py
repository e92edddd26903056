# SPDX-License-Identifier: Apache-2.0
# backends: none
"""`python -m headrace.export`: what it writes, how it compares, and what it says when it cannot."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

# Read when torch is imported. Threads that spin for one another take long where other work has the cores. Nor
# does torch compile a program for each kind of vector instructions to see which there are, or optimise: the
# cases of test_demo_model.py run packages that were made with both.
for name, value in {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
    "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
}.items():
    os.environ.setdefault(name, value)

from headrace import errors, export  # noqa: E402
from headrace.exporting import archive  # noqa: E402
from headrace.exporting.output import check_output  # noqa: E402

torch = pytest.importorskip("torch", reason="torch is not installed")

from headrace.exporting import bare_loader, runners  # noqa: E402  (they need torch)
from headrace.exporting import package as package_module  # noqa: E402
from headrace.exporting.noting_file import NotingFile  # noqa: E402
from headrace.exporting.request import ExportRequest, read_request  # noqa: E402
from headrace.exporting.verify import compare, in_order_of  # noqa: E402

MODELS = """
import torch
from torch.export import Dim

class Mixed(torch.nn.Module):
    "Inputs: one by keyword, one written to, one not contiguous, a number; nested outputs; a size derived."
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, state, *, mask=None, times=3):
        state.add_(x.sum(0))
        return {"logits": self.linear(x) * times + mask, "rest": [torch.cat((x, x)), x > 0]}

def mixed():
    torch.manual_seed(1)
    batch = Dim("batch", min=1, max=64)
    return {
        "module": Mixed(),
        "args": (torch.randn(4, 8), torch.zeros(8)),
        "kwargs": {"mask": torch.randn(4, 3).T[0:1].expand(1, 4), "times": 3},
        "dynamic_shapes": {"x": {0: batch}, "state": None, "mask": None, "times": None},
    }

class Changing(torch.nn.Module):
    "Compiled, it gives something else."
    def forward(self, x):
        return x + (1e-2 if torch.compiler.is_compiling() else 0)

def changing():
    return Changing(), (torch.ones(3),)

def raising():
    raise RuntimeError("no weights today")

def a_number():
    return 7

def third_dict():
    return Changing(), (torch.ones(3),), {"x": {0: Dim("rows")}}

def third_tuple():
    return Changing(), (torch.ones(3),), ({0: 2 * Dim("rows")},)

def third_hint():
    return Changing(), (torch.ones(3),), {"x": [Dim.AUTO]}

def third_number():
    return Changing(), (torch.ones(3),), 5

def another_key():
    return {"module": Changing(), "args": (torch.ones(3),), "batch": 4}

def no_args():
    return {"module": Changing()}

def no_module():
    return torch.nn.functional.relu, (torch.ones(3),)

class Branching(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

def branching():
    return Branching(), (torch.ones(3),)

class Numbers(torch.nn.Module):
    def forward(self, x):
        return x + 1, 5

def numbers():
    return Numbers(), (torch.ones(3),)

def two_names():
    return {"module": Changing(), "args": (torch.ones(3),), "input_names": ["a", "b"]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the models, which is also the compiler's cache for all tests here."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "models.py").write_text(MODELS)
    (folder / "tmp").mkdir()
    return folder


def run_export(folder, *arguments, before=()):
    command = [*before, sys.executable, "-m", "headrace.export", *arguments, "--cache", str(folder / "cache")]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.fixture(scope="module")
def mixed(folder):
    """The first model's package, exported once, and what the command printed."""
    done = run_export(folder, "models.py:mixed", "--output", "mixed.pt2", "--verify")
    assert done.returncode == 0, done.stderr
    return folder / "mixed.pt2", done


def call(folder, target, output, *more):
    """The command inside this process: quick, since torch is there already."""
    return export.main(
        [str(folder / target), "--output", str(output), "--cache", str(folder / "cache"), *more]
    )


def test_the_package_says_what_its_inputs_and_outputs_are(mixed):
    batch = {"name": "batch", "min": 1, "max": 64}
    spec = archive.read_spec(mixed[0])
    assert (spec["headrace_io"], spec["torch"], spec["device"]) == (1, torch.__version__, "cpu")
    assert spec["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [batch, 8], "strides": None, "optional": False},
        {"name": "state", "dtype": "float32", "shape": [8], "strides": None, "optional": False},
        {"name": "mask", "dtype": "float32", "shape": [1, 4], "strides": [1, 3], "optional": False},
    ]
    assert spec["outputs"] == [
        {"name": "logits", "dtype": "float32", "shape": [batch, 4]},
        {"name": "rest.0", "dtype": "float32", "shape": [{"expr": "2*batch"}, 8]},
        {"name": "rest.1", "dtype": "bool", "shape": [batch, 8]},
    ]
    assert spec["mutated"] == ["state"]


def test_the_spec_is_an_entry_of_the_archive_and_a_key_of_torchs_metadata(mixed):
    with zipfile.ZipFile(mixed[0]) as package:
        assert package.testzip() is None
        entry = package.getinfo(f"{package.namelist()[0].partition('/')[0]}/extra/headrace.json")
        assert entry.compress_type == zipfile.ZIP_STORED
        metadata = next(name for name in package.namelist() if name.endswith("wrapper_metadata.json"))
        assert json.loads(json.loads(package.read(metadata))["headrace"]) == json.loads(package.read(entry))


CASES = ("on the example", "with batch=1", "with batch=16", "with batch=9")


def test_verification_tells_each_output_of_both_runners_at_the_examples_size_and_three_others(mixed):
    lines = mixed[1].stdout.splitlines()
    both = ("Headrace's runner", "PyTorch's loader")
    assert {line.partition(":")[0] for line in lines} == {
        f"{case}, {runner}" for case in CASES for runner in both
    }
    for output in ("logits", "rest.0", "rest.1", "state (written)"):
        told = [line for line in lines if f": {output} " in line]
        assert len(told) == 8 and all("largest difference" in line and line.endswith(": ok") for line in told)


# Runners that crash or cannot be used


CHILD = """
import os, signal, sys
from headrace.errors import NotSupported
from headrace.exporting import runners
from headrace.exporting.runners import HEADRACE, TORCH

def crash(package, device):
    os.kill(os.getpid(), signal.SIGSEGV)

def crash_in_run(package, device):
    return lambda tensors: crash(package, device)

def absent(package, device):
    raise NotSupported("there is no libheadrace_torch.so")

def lacks_operator(package, device):
    raise RuntimeError("could not find schema for mine::add")

runners.OPEN.update({overrides})
runners.main(sys.argv[1:])
"""


@pytest.fixture
def compiled_once(folder, monkeypatch):
    """Calls of the command compile models.py:changing at the first time; then they take that file."""
    compiled, compile_it = folder / "compiled", package_module._compile

    def compile_once(program, candidate):
        if not compiled.exists():
            compile_it(program, candidate)
            candidate.rename(compiled)
        shutil.copy(compiled, candidate)

    monkeypatch.setattr(package_module, "_compile", compile_once)


@pytest.fixture
def simple(folder, tmp_path, monkeypatch, capfd, compiled_once):
    """Call it with what opens the package in the child, by runner, to export a module of one addition. What
    it gives when it is compiled lies within the tolerance."""

    def export_with(overrides):
        child = tmp_path / "child.py"
        child.write_text(CHILD.format(overrides=overrides))
        monkeypatch.setattr(
            runners, "child_command", lambda arguments: [sys.executable, str(child), *arguments]
        )
        monkeypatch.setattr(bare_loader, "explain_crash", lambda device: f"Bare torch dies on {device}, too.")
        code = call(folder, "models.py:changing", tmp_path / "simple.pt2", "--verify", "--tolerance", "0.1")
        return code, (tmp_path / "simple.pt2").exists(), *capfd.readouterr()

    return export_with


@pytest.mark.slow
def test_a_crash_of_pytorchs_loader_is_told_and_headraces_runner_is_compared_alone(simple, tmp_path):
    code, written, out, err = simple("{TORCH: crash}")
    assert (code, written) == (0, True), err
    assert "PyTorch's loader ended by signal 11 (SIGSEGV) in step load" in err
    assert "Bare torch dies on cpu, too." in err
    lines = out.splitlines()
    assert lines and all(", Headrace's runner: " in line and line.endswith(": ok") for line in lines)
    assert [path.name for path in tmp_path.iterdir() if "simple" in path.name] == ["simple.pt2"]


def test_a_package_on_which_headraces_runner_crashes_is_not_written(simple):
    code, written, _, err = simple("{HEADRACE: crash_in_run}")
    assert (code, written) == (1, False)
    assert (
        "simple.pt2 was not written: "
        "Headrace's runner ended by signal 11 (SIGSEGV) in step run on the example" in err
    )
    assert "Bare torch" not in err, "PyTorch's loader ran it"


def test_a_package_that_no_runner_ran_is_not_written(simple):
    code, written, _, err = simple("{HEADRACE: absent, TORCH: crash}")
    assert (code, written) == (1, False)
    assert "Headrace's runner cannot be used: there is no libheadrace_torch.so" in err
    assert "PyTorch's loader ended by signal 11 (SIGSEGV) in step load. Bare torch dies on cpu, too." in err


def test_without_headraces_runtime_pytorchs_loader_is_compared_alone(simple):
    code, written, out, err = simple("{HEADRACE: absent}")
    assert (code, written) == (0, True), err
    assert "Headrace's runner cannot be used: there is no libheadrace_torch.so" in err
    assert all(", PyTorch's loader: " in line for line in out.splitlines()) and out


def test_what_a_child_cannot_run_is_run_by_the_process_that_exports(simple):
    code, written, out, err = simple("{TORCH: lacks_operator}")
    assert (code, written) == (0, True), err
    assert ", PyTorch's loader: " in out and ", Headrace's runner: " in out


def test_a_package_that_differs_in_headraces_runner_alone_is_not_written(simple):
    code, written, out, _ = simple("{HEADRACE: lambda package, device: lambda tensors: [tensors[0] + 1.5]}")
    assert (code, written) == (1, False)
    verdicts = {
        line.partition(", ")[2].partition(":")[0]: line.rpartition(": ")[2] for line in out.splitlines()
    }
    assert verdicts == {"Headrace's runner": "DIFFERS", "PyTorch's loader": "ok"}


def test_keywords_in_another_order_are_put_into_the_examples():
    assert list(in_order_of({"a": 1, "b": 2}, {"b": 4, "a": 3})) == ["a", "b"]
    assert in_order_of({"a": 1}, {"b": 4}) == {"b": 4}


def test_nothing_is_left_beside_the_package(mixed):
    assert sorted(path.name for path in mixed[0].parent.iterdir() if "mixed" in path.name) == ["mixed.pt2"]


def test_the_package_runs_with_a_batch_of_one_and_writes_to_its_input(mixed):
    runner = torch._inductor.aoti_load_package(str(mixed[0]))
    x, state = torch.ones(1, 8), torch.zeros(8)
    out = runner(x, state, mask=torch.zeros(3, 4).T[:, :1].T, times=3)
    assert out["logits"].shape == (1, 4) and torch.equal(state, x[0])


def test_a_package_that_differs_is_not_written(folder, tmp_path, capfd, compiled_once):
    package = tmp_path / "changing.pt2"
    package.write_text("the old one")
    assert call(folder, "models.py:changing", package, "--force", "--verify", "--tolerance", "0.001") == 1
    out, err = capfd.readouterr()
    assert "largest difference 0.01" in out and "--tolerance" in err
    assert len(out.splitlines()) == 2 and all(line.endswith(": DIFFERS") for line in out.splitlines())
    assert package.read_text() == "the old one"


@pytest.mark.parametrize(
    ("target", "output", "said"),
    [
        ("models.py", "x.pt2", "expected module.py:function"),
        ("missing.py:mixed", "x.pt2", "missing.py is not a file"),
        ("models.py:nothing", "x.pt2", "has no function 'nothing': it has Mixed, mixed"),
        ("models.py:raising", "x.pt2", "raised RuntimeError: no weights today"),
        ("models.py:a_number", "x.pt2", "returned a int: expected a tuple (module, args)"),
        ("models.py:another_key", "x.pt2", "the key 'batch': expected"),
        ("models.py:no_args", "x.pt2", "without the key 'args'"),
        ("models.py:no_module", "x.pt2", "must be a torch.nn.Module"),
        ("models.py:branching", "x.pt2", "torch.export cannot trace Branching"),
        ("models.py:numbers", "x.pt2", "output 1 of the module is 5: a package can return only tensors"),
        ("models.py:two_names", "x.pt2", "2 input_names for 1 input tensors (x)"),
        ("models.py:changing", "x.onnx", "must end in .pt2"),
        ("models.py:changing", "missing/x.pt2", "missing is not a folder"),
        (
            "models.py:third_dict",
            "x.pt2",
            "has the dynamic dimension rows, but takes example inputs by name: return a dict",
        ),
        (
            "models.py:third_tuple",
            "x.pt2",
            "has the dynamic dimension 2*rows, but takes example inputs by name: return a dict",
        ),
        ("models.py:third_hint", "x.pt2", "has the dynamic dimension"),
        ("models.py:third_number", "x.pt2", "kwargs is a int: it must be a dict"),
    ],
)
def test_what_cannot_be_exported_is_an_error_that_says_what_was_expected(
    folder, capsys, target, output, said
):
    assert call(folder, target, folder / output) == 1
    assert said in capsys.readouterr().err
    assert not (folder / output).exists()


def test_where_it_goes_is_looked_at_before_anything_else(tmp_path, capsys):
    (tmp_path / "taken.pt2").mkdir()
    said = {
        "x.onnx": "must end in .pt2",
        "missing/x.pt2": "missing is not a folder: create it first",
        "taken.pt2": "taken.pt2 is a folder: --output must name the package to write",
    }
    for output, expected in said.items():
        assert export.main(["no such file.py:f", "--output", str(tmp_path / output)]) == 1
        assert expected in capsys.readouterr().err
    (tmp_path / "there.pt2").write_bytes(b"a package")
    wanted = ["no such file.py:f", "--output", str(tmp_path / "there.pt2")]
    assert export.main(wanted) == 1
    assert "there.pt2 exists: --force replaces it" in capsys.readouterr().err
    assert export.main([*wanted, "--force"]) == 1
    assert "no such file.py" in capsys.readouterr().err
    assert (tmp_path / "there.pt2").read_bytes() == b"a package"
    with pytest.raises(errors.InvalidArgument, match="must end in .pt2"):
        export.export_package(None, tmp_path / "x.onnx")


def test_a_folder_that_takes_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(errors.InvalidArgument, match="is not writable"):
        check_output(tmp_path / "x.pt2")


def test_a_file_that_cannot_be_imported_is_named_with_the_reason(tmp_path):
    (tmp_path / "broken.py").write_text("import not_there_at_all")
    with pytest.raises(
        errors.InvalidArgument, match="broken.py cannot be imported: ModuleNotFoundError: .*not_there_at_all"
    ):
        read_request(f"{tmp_path}/broken.py:f")


def test_a_device_that_is_not_there_is_an_error(folder, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(folder, "models.py:changing", folder / "x.pt2", "--device", "cuda") == 1
    assert "finds no GPU" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(run_script):
    text = (
        "import sys; sys.modules['torch'] = None; from headrace import export; "
        "sys.exit(export.main(['a.py:f', '--output', 'x.pt2']))"
    )
    code, out, err = run_script(text)
    assert (code, out) == (1, "") and "needs torch" in err and "pip install torch" in err


def test_importing_it_brings_no_torch(run_script):
    code, out, err = run_script(
        "import sys, headrace.export, headrace.exporting.archive; print('torch' in sys.modules)"
    )
    assert (code, out.strip()) == (0, "False"), err


def test_a_compiler_that_is_missing_is_named(folder, monkeypatch, capsys):
    def compile_nothing(*arguments, **options):
        from torch._inductor.exc import InvalidCxxCompiler

        raise InvalidCxxCompiler

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_nothing)
    assert call(folder, "models.py:changing", folder / "x.pt2") == 1
    assert "install g++" in capsys.readouterr().err


@pytest.fixture(scope="module")
def full_disk(folder, mixed):
    """The command's run where the output's file system has 400 KB; it prints afterwards what is left
    there."""
    where = folder / "small"
    where.mkdir()
    probe = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(where)], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("this machine allows no mounting of one's own")
    script = f"""
        mount -t tmpfs -o size=400k tmpfs {where} && echo old > {where}/mixed.pt2
        "$@"; code=$?
        cat {where}/mixed.pt2; ls -A {where}; exit $code
    """
    return run_export(
        folder,
        "models.py:mixed",
        "--output",
        f"{where}/mixed.pt2",
        "--force",
        before=["unshare", "-rm", "sh", "-c", script, "sh"],
    )


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_the_old_package(folder, full_disk):
    assert full_disk.returncode == 1
    assert "No space left on device (ENOSPC)" in full_disk.stderr
    assert str(folder / "small") in full_disk.stderr and "free space" in full_disk.stderr
    assert full_disk.stdout.split() == ["old", "mixed.pt2"]


def test_a_disk_that_is_full_when_torch_writes_its_archive_is_named(tmp_path, monkeypatch):
    def write_archive(exported, package_path, inductor_configs):
        torch.save({"weights": torch.zeros(1 << 20)}, package_path)  # torch's writer of archives

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", write_archive)
    monkeypatch.setattr(package_module, "NotingFile", lambda path: NotingFile(Path("/dev/full")))
    package = tmp_path / "x.pt2"
    package.write_text("the old one")
    with pytest.raises(
        errors.Exhausted, match=rf"No space left on device \(ENOSPC\) in {tmp_path}: free space there"
    ):
        package_module.write_package(SimpleNamespace(exported=None, spec={}), package, tmp_path / "cache")
    assert package.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "x.pt2"]


def test_a_full_cache_is_named_even_if_the_compiler_hides_the_reason(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(package_module, "_is_full", lambda folder: folder == cache)

    def fail(program, candidate):
        raise RuntimeError("g++ ended with 1")

    monkeypatch.setattr(package_module, "_compile", fail)
    with pytest.raises(errors.Exhausted, match=f"{cache}: free space"):
        package_module.write_package(None, tmp_path / "x.pt2", cache)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_the_compilers_work_is_kept_in_the_cache_and_nothing_in_the_temporary_folder(folder, mixed):
    assert any((folder / "cache").iterdir())
    assert list((folder / "tmp").iterdir()) == []


def test_differences_are_the_largest_absolute_and_relative():
    found = compare("c", "o", torch.tensor([1.0, 100.0]), torch.tensor([1.00005, 100.001]))
    assert (
        found.within
        and found.absolute == pytest.approx(1e-3, rel=1e-2)
        and found.relative == pytest.approx(5e-5, rel=1e-2)
    )
    assert not compare("c", "o", torch.tensor([1.0]), torch.tensor([1.1])).within
    assert compare("c", "o", torch.tensor([1.0]), torch.tensor([1.1]), tolerance=0.2).within


@pytest.mark.parametrize(
    ("expected", "actual", "within"),
    [
        ([float("nan"), float("inf")], [float("nan"), float("inf")], True),
        ([float("nan")], [0.0], False),
        ([float("inf")], [float("-inf")], False),
        ([], [], True),
        ([1.0, 2.0], [1.0], False),
    ],
)
def test_what_is_not_finite_must_agree(expected, actual, within):
    assert compare("c", "o", torch.tensor(expected), torch.tensor(actual)).within is within


def test_integers_must_be_equal_and_dtypes_too():
    assert compare("c", "o", torch.tensor([2]), torch.tensor([2])).within
    assert not compare("c", "o", torch.tensor([2]), torch.tensor([3]), tolerance=10).within
    assert not compare("c", "o", torch.tensor([2]), torch.tensor([2.0])).within
    assert compare(
        "c", "o", torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.01], dtype=torch.bfloat16)
    ).within


def test_a_request_takes_one_tensor_for_a_tuple_and_names_what_is_no_tuple():
    module = torch.nn.Identity()
    assert len(ExportRequest(module, torch.ones(2)).args) == 1
    with pytest.raises(errors.InvalidArgument, match="args is a int: it must be a tuple"):
        ExportRequest(module, 3)


class Lookups(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(256, 8)
        self.bias = torch.nn.Parameter(torch.zeros(10, 4))

    def forward(self, tokens, rows, columns, computed, masked, free, grown):
        return (
            self.table(tokens.view(-1)),
            self.bias[rows.long()].sum(),
            torch.gather(self.bias, 1, columns),
            self.table(computed % 256),
            self.bias[masked].sum(),
            free + 1,
            grown[free * 0],
        )


def test_the_range_of_an_input_that_is_used_as_an_index_is_known_and_no_other():
    from headrace.exporting.index_bounds import index_bounds

    tokens, columns, computed, free = torch.zeros(4, 2, 3, dtype=torch.int64).unbind()
    rows, masked = torch.zeros(2, dtype=torch.int32), torch.zeros(10, dtype=torch.bool)
    inputs = (tokens, rows, columns, computed, masked, free, torch.zeros(7))
    program = torch.export.export(Lookups().eval(), inputs).run_decompositions({})
    assert index_bounds(program) == {"tokens": (0, 255), "rows": (-10, 9), "columns": (0, 3)}


def test_an_index_into_a_dimension_that_varies_has_no_range():
    from headrace.exporting.index_bounds import index_bounds

    class Pick(torch.nn.Module):
        def forward(self, x, at):
            return torch.index_select(x, 0, at)

    rows = torch.export.Dim("rows", min=2, max=64)
    inputs = (torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64))
    program = torch.export.export(Pick(), inputs, dynamic_shapes={"x": {0: rows}, "at": None})
    assert index_bounds(program.run_decompositions({})) == {}
