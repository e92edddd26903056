# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.Model: compiled packages, run from Python."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import headrace
from conftest import until

COMMAND = Path(sys.executable).parent / "headrace"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "build" / "models"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def packages():
    script = ROOT / "tests" / "support" / "export_models.py"
    subprocess.run([sys.executable, str(script), str(PACKAGES)], check=True)
    return PACKAGES


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def small_disk(tmp_path):
    """A folder, and a command prefix. A command with this prefix finds a file system of 400 KB in the folder;
    the files that it leaves there are printed."""
    where = tmp_path / "small"
    where.mkdir()
    if (
        subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(where)], capture_output=True, check=False
        ).returncode
        != 0
    ):
        pytest.skip("this machine allows no mounting of one's own")
    script = f'mount -t tmpfs -o size=400k tmpfs {where}; "$@"; code=$?; find {where} -mindepth 2; exit $code'
    return where, ["unshare", "-rm", "sh", "-c", script, "sh"]


@pytest.fixture
def add(packages):
    return headrace.Model(str(packages / "add.pt2"))


def test_a_run_takes_numpy_arrays_and_its_outputs_are_read_without_a_copy(add):
    x = np.arange(1024, dtype=np.float32)
    (y,) = add.run(x)
    assert (y.shape, y.dtype, y.device) == ((1024,), "float32", "cpu")
    array = np.asarray(y)
    assert np.array_equal(array, x + 1)
    array[0] = 99
    assert np.asarray(y)[0] == 99
    assert y.numpy().dtype == np.float32
    assert memoryview(y).format == "f"


def test_torch_tensors_are_inputs_and_outputs_become_torch_tensors(add):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(1024)
    (y,) = add(x)
    assert torch.equal(torch.from_dlpack(y), x + 1)
    assert np.array_equal(np.from_dlpack(y), x.numpy() + 1)


def test_any_object_with_dlpack_is_an_input(add):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **kwargs):
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = np.arange(1024, dtype=np.float32)
    assert np.array_equal(add.run(Foreign(x))[0].numpy(), x + 1)


def test_an_output_may_be_an_input_and_outlives_the_model(packages):
    model = headrace.Model(str(packages / "add.pt2"))
    (y,) = model.run(np.zeros(1024, np.float32))
    (z,) = model.run(y)
    del model, y
    assert z.numpy()[5] == 2


def test_an_output_that_the_buffer_protocol_has_no_word_for_is_an_input_too(packages):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = headrace.Model(packages / "types.pt2")
    kinds = "float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64".split()
    inputs = [torch.ones(6, dtype=getattr(torch, kind)) for kind in kinds]
    twice = model(*inputs)[2]
    assert twice.dtype == "bfloat16"
    with pytest.raises(BufferError, match="no format for this dtype"):
        memoryview(twice)
    inputs[2] = twice
    assert torch.from_dlpack(model(*inputs)[2]).tolist() == [4] * 6


def test_a_stream_for_a_model_on_the_cpu_is_refused(add):
    with pytest.raises(headrace.InvalidArgument, match="runs on the CPU, which has no streams"):
        add(np.zeros(1024, np.float32), stream=0)
    with pytest.raises(
        headrace.InvalidArgument, match="give a torch.cuda.Stream, or the number of a CUDA stream"
    ):
        add(np.zeros(1024, np.float32), stream="fast")
    assert add(np.zeros(1024, np.float32), stream=None)[0].shape == (1024,)
    assert add.memory()["device_used_bytes"] == 0


def test_a_producer_gets_the_stream_on_which_its_memory_is_read(add):
    class Foreign:
        def __init__(self):
            self.array, self.told = np.zeros(1024, np.float32), []

        def __dlpack__(self, **how):
            self.told.append(how)
            return self.array.__dlpack__()

    foreign = Foreign()
    add(foreign)
    for stream in (0, 17):
        with pytest.raises(headrace.InvalidArgument, match="no streams"):
            add(foreign, stream=stream)
    assert foreign.told == [{}, {"stream": 1}, {"stream": 17}]


def test_inputs_can_be_named(packages):
    model = headrace.Model(str(packages / "mixed.pt2"))
    inputs = {
        "m": np.ones((2, 4), np.float32),
        "a": np.ones(16, np.float32),
        "ids": np.zeros(5, np.int64),
        "bias": np.zeros(16, np.float32),
    }
    by_name = model.run(**inputs)
    by_place = model.run(inputs["a"], inputs["bias"], m=inputs["m"], ids=inputs["ids"])
    for one, other in zip(by_name, by_place, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    with pytest.raises(headrace.InvalidArgument, match="the model takes a, bias, m, ids"):
        model.run(inputs["a"], a=inputs["a"])
    with pytest.raises(headrace.InvalidArgument, match=r"input 1 \(bias\) has no memory"):
        model.run(a=inputs["a"], m=inputs["m"], ids=inputs["ids"])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (np.zeros(1023, np.float32), "dimension 0 must be 1024, and is 1023"),
        (np.zeros((2, 512), np.float32), "1 dimension, and has 2"),
        (np.zeros(1024), "its type must be float32"),
        (np.zeros(2048, np.float32)[::2], "row-major order without gaps"),
        (np.zeros(1024, ">f4"), "format '>f'"),
        (np.zeros(1024, object), "format 'O'"),
        ("text", "is not an array"),
        (None, "has no memory"),
    ],
)
def test_a_wrong_input_raises_before_the_run(add, wrong, sentence):
    with pytest.raises(headrace.InvalidArgument, match=sentence) as raised:
        add.run(wrong)
    assert "arg0_1" in str(raised.value)
    assert add.timing()["runs"] == 0


def test_info_describes_the_inputs_and_outputs_of_a_model(packages):
    info = headrace.Model.inspect(str(packages / "mlp.pt2"))
    assert info["inputs"][0]["shape"] == [{"name": "batch", "min": 1, "max": 64}, 256]
    assert info["described_by"] == "exported"
    assert headrace.Model(str(packages / "mlp.pt2")).info["outputs"] == info["outputs"]


def test_each_error_is_the_fitting_exception(tmp_path):
    with pytest.raises(headrace.NotFound, match="nothing.pt2"):
        headrace.Model(str(tmp_path / "nothing.pt2"))
    (tmp_path / "text.pt2").write_text("no package")
    with pytest.raises(headrace.Corrupt, match="not a package"):
        headrace.Model(str(tmp_path / "text.pt2"))


def test_constants_are_listed_and_replaced(packages):
    model = headrace.Model(str(packages / "mixed.pt2"))
    assert {"name": "weight", "dtype": "float32", "shape": (3, 4)} in model.constants()
    model.replace_constants({"weight": np.full((3, 4), 2, np.float32)})
    ones = np.ones(16, np.float32)
    outputs = model.run(ones, ones, np.ones((1, 4), np.float32), np.zeros(5, np.int64))
    assert outputs[1].numpy().tolist() == [[8, 8, 8]]
    with pytest.raises(headrace.InvalidArgument, match="nothing was replaced"):
        model.replace_constants({"weight": np.zeros((4, 3), np.float32)})


@pytest.mark.parametrize(
    "laid_out",
    [np.asfortranarray, lambda w: np.repeat(w, 2, axis=1)[:, ::2]],
    ids=["by columns", "with gaps"],
)
def test_constants_of_any_strides_are_replaced_by_their_values(packages, laid_out):
    model = headrace.Model(packages / "mixed.pt2")
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    inputs = (
        np.ones(16, np.float32),
        np.ones(16, np.float32),
        np.ones((1, 4), np.float32),
        np.zeros(5, np.int64),
    )
    model.replace_constants({"weight": weight})
    expected = model.run(*inputs)[1].numpy().tolist()
    model.replace_constants({"weight": np.zeros((3, 4), np.float32)})
    model.replace_constants({"weight": laid_out(weight)})
    assert model.run(*inputs)[1].numpy().tolist() == expected == [[6, 22, 38]]
    with pytest.raises(headrace.InvalidArgument, match="has negative strides: .*nothing was replaced"):
        model.replace_constants({"weight": weight[::-1]})
    assert model.run(*inputs)[1].numpy().tolist() == expected


def test_an_input_that_the_model_writes_must_be_writable(packages):
    counter = headrace.Model(packages / "counter.pt2")
    ones, total = np.ones(8, np.float32), np.zeros(1, np.float32)
    counter.run(ones, total)
    assert total.tolist() == [8]
    total.flags.writeable = False
    for locked in (total, bytes(4)):
        with pytest.raises(headrace.InvalidArgument, match="input total"):
            counter.run(ones, locked)
    assert total.tolist() == [8]
    ones.flags.writeable = False  # the model only reads this input
    counter.run(ones, np.zeros(1, np.float32))


def test_a_lazily_negated_view_of_torch_is_refused_with_advice(packages):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.arange(1024, dtype=torch.float32)
    add = headrace.Model(packages / "add.pt2")
    with pytest.raises(headrace.InvalidArgument, match=r"input .* resolve_neg\(\)"):
        add(torch._neg_view(x))
    assert torch.equal(torch.from_dlpack(add(torch._neg_view(x).resolve_neg())[0]), 1 - x)
    with pytest.raises(headrace.InvalidArgument, match="memory cannot be used"):
        add(torch.zeros(1024, device="meta"))


def test_a_forked_child_gets_an_error_instead_of_waiting_for_missing_threads(packages):
    program = (
        "import os, sys, numpy, headrace\n"
        "x = numpy.zeros((32, 256), 'f4')\n"
        "for threads, expected in ((0, False), (1, True)):\n"
        "    model = headrace.Model(sys.argv[1], threads=threads)\n"
        "    model(x)\n"
        "    if not os.fork():\n"
        "        try:\n"
        "            model(x)\n"
        "            works = True\n"
        "        except headrace.InvalidArgument as error:\n"
        "            works = 'forked' not in str(error)\n"
        "        os._exit(works is not expected)\n"
        "    assert os.wait()[1] == 0, threads\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(packages / "mlp.pt2")],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_several_threads_run_one_model_at_once(packages):
    model = headrace.Model(str(packages / "convolution.pt2"), runners=2)
    x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    expected = model.run(x)[0].numpy()
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(model.run(x)[0].numpy(), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.timing()["runs"] == 201


def test_a_model_imports_no_torch(packages):
    program = (
        "import sys, headrace, json, numpy as np; "
        f"m = headrace.Model({str(packages / 'add.pt2')!r}); "
        "print(json.dumps([float(m.run(np.ones(1024, np.float32))[0].numpy()[3]), 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert json.loads(done.stdout) == [2.0, False]


def test_a_with_block_closes_its_model_and_keeps_the_outputs(packages):
    path = packages / "add.pt2"
    with headrace.Model(path) as model:
        (y,) = model(np.zeros(1024, np.float32))
        assert not model.closed
    assert model.closed and repr(model) == f"Model({str(path)!r}, closed)"
    calls = [
        lambda: model.run(np.zeros(1024, np.float32)),
        lambda: model(),
        lambda: model.info,
        model.constants,
        model.timing,
        model.memory,
        lambda: model.replace_constants({}),
    ]
    for call in calls:
        with pytest.raises(headrace.InvalidArgument, match="add.pt2 is closed: open it again"):
            call()
    model.close()
    assert np.array_equal(np.asarray(y), np.ones(1024))


def test_a_close_waits_for_the_runs_of_other_threads(packages):
    model = headrace.Model(packages / "mlp.pt2", runners=2)
    x = np.zeros((64, 256), np.float32)
    begun = threading.Barrier(3)
    errors, runs = [], []

    def run_until_closed():
        begun.wait()
        try:
            while True:
                runs.append(len(model(x)))
        except headrace.InvalidArgument as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run_until_closed) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: runs)
    model.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2 and all("is closed" in error for error in errors)


def test_a_tensor_and_a_model_are_not_pickled(add):
    import pickle

    for value in (add, add.run(np.zeros(1024, np.float32))[0]):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(value)


def test_a_full_disk_during_unpacking_is_reported_with_advice_and_nothing_is_left(packages, small_disk):
    where, before = small_disk
    environment = {**os.environ, "HEADRACE_CACHE_DIR": str(where)}
    command = [*before, sys.executable, "-m", "headrace", "infer", str(packages / "add.pt2"), "--generate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "no space left on device (errno 28)" in done.stderr
    assert (
        f"The cache folder {where}/packages must be writable" in done.stderr
        and "HEADRACE_CACHE_DIR" in done.stderr
    )


def on_a_terminal(*command):
    """The text that a command writes to a terminal."""
    reader, terminal = os.openpty()
    process = subprocess.Popen(command, stdout=terminal)
    os.close(terminal)
    said = b""
    try:
        while part := os.read(reader, 4096):
            said += part
    except OSError:
        pass  # this is how a terminal ends after its last writer has closed it
    os.close(reader)
    assert process.wait(60) == 0, said
    return said.decode().replace("\r\n", "\n")


def test_doctor_prints_a_table_on_a_terminal_unless_json_is_asked_for(packages):
    command = [COMMAND, "doctor", "--device", "cpu", "--model", packages / "add.pt2"]
    table = on_a_terminal(*command)
    assert re.search(r"\nmatmul float32 +ok +256 x 256", table) and re.search(
        r"\nthe model +ok +loads in ", table
    )
    assert table.endswith("\nAll checks passed on cpu.\n")
    assert json.loads(on_a_terminal(*command, "--json"))["works"]


def lookup_inputs():
    return {
        "a": np.zeros(16, np.float32),
        "bias": np.zeros(16, np.float32),
        "m": np.zeros((1, 4), np.float32),
        "ids": np.arange(5, dtype=np.int64),
    }


def test_an_index_out_of_range_is_refused_and_the_process_lives(packages, tmp_path):
    with zipfile.ZipFile(packages / "mixed.pt2") as archive:
        archive.extractall(tmp_path / "package")
    (spec,) = (tmp_path / "package").rglob("extra/headrace.json")
    described = json.loads(spec.read_text())
    described["inputs"][3]["values"] = {"min": 0, "max": 99}
    spec.write_text(json.dumps(described))
    model = headrace.Model(str(spec.parents[1]))
    assert model.info["inputs"][3]["values"] == {"min": 0, "max": 99}
    inputs = lookup_inputs()
    table = np.asarray(model(**inputs)[2])
    inputs["ids"][4] = 100  # in the same memory as before
    told = r"input 3 \(ids\) has the value 100 at element 4.* 0 to 99"
    with pytest.raises(headrace.InvalidArgument, match=told):
        model(**inputs)
    inputs["ids"][4] = 4
    assert np.array_equal(np.asarray(model(**inputs)[2]), table)


def test_an_isolated_model_that_crashes_is_told_with_its_signal(packages):
    command = [COMMAND, "infer", packages / "add.pt2", "--isolated", "--generate", "--runs"]
    ignores = ["sh", "-c", 'trap "" CHLD; exec "$@"', "sh"]  # which a child inherits
    good = subprocess.run([*ignores, *command, "1"], capture_output=True, text=True, timeout=100, check=False)
    assert good.returncode == 0, good.stderr
    assert "output0" in good.stdout
    with subprocess.Popen([*ignores, *command, "20000000"], stderr=subprocess.PIPE, text=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        until(lambda: children.read_text())
        os.kill(int(children.read_text()), signal.SIGABRT)
        _, errors = running.communicate(timeout=100)
    assert running.returncode == 1
    assert "ended by signal 6 (SIGABRT)" in errors
