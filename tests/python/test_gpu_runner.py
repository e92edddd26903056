# SPDX-License-Identifier: Apache-2.0
"""Compiled models, and the demo, on GPUs."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from gpus import count_gpus, torch_on_gpus, two_of

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu_models"
WEIGHTS = Path(headrace.__file__).parent / "demo_model" / "weights.safetensors"
SECONDS = 170
GPUS = count_gpus()
pytestmark = torch_on_gpus(GPUS)
one_gpu = pytest.mark.gpu1
two_gpus = two_of(GPUS)
each_gpu = pytest.mark.parametrize(
    "device", [pytest.param("cuda:0", marks=one_gpu), pytest.param("cuda:1", marks=two_gpus)]
)


def command():
    """The command beside this Python, or on the PATH where the build was carried here."""
    beside = Path(sys.executable).parent / "headrace"
    return str(beside) if beside.exists() else shutil.which("headrace")


def run(*arguments):
    done = subprocess.run(
        [command(), *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def modules():
    """tests/support/gpu_models.py."""
    spec = importlib.util.spec_from_file_location("gpu_models", ROOT / "tests" / "support" / "gpu_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def packages(modules):
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "gpu_models.py"), str(BUILD)], check=True
    )
    return BUILD


@pytest.fixture
def mlp(packages, modules, torch):
    """Opens it on a device, with the module that it was made of."""

    def open_on(device):
        return headrace.Model(packages / "mlp.pt2", device=device), modules.mlp()["module"].to(device).eval()

    return open_on


def close(one, other):
    return (one - other).abs().max().item() < 1e-3


def sleep(torch, stream):
    """Keeps the stream busy for a good tenth of a second."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(300_000_000)


# Models


@each_gpu
def test_inputs_and_outputs_stay_on_the_gpu(mlp, torch, device):
    model, module = mlp(device)
    for batch in (1, 3, 64):
        x = torch.randn(batch, 256, device=device)
        logits, hidden, same = model(x)
        assert (logits.device, logits.dtype, logits.shape) == (device, "float32", (batch, 10))
        with torch.no_grad():
            expected = module(x)
        found = [torch.from_dlpack(output) for output in (logits, hidden, same)]
        assert all(
            str(one.device) == device and close(one, other)
            for one, other in zip(found, expected, strict=True)
        )
        assert found[2].data_ptr() != x.data_ptr()  # what is handed through is a copy
    with pytest.raises(BufferError, match="is on a GPU"):
        memoryview(logits)


@one_gpu
def test_an_output_is_an_input_and_outlives_its_model(packages, torch):
    model = headrace.Model(packages / "accumulate.pt2")
    total = torch.zeros(1 << 20, device="cuda:0")
    (twice,) = model(total, torch.ones(1 << 20, device="cuda:0"))
    assert total.eq(1).all()  # written where it lies
    (again,) = model(total, twice)
    model.close()
    del model, twice
    assert total.eq(3).all() and torch.from_dlpack(again).eq(6).all()


@each_gpu
def test_a_run_on_a_stream_returns_at_once_and_comes_in_its_order(packages, torch, device):
    model = headrace.Model(packages / "accumulate.pt2", device=device)
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            total, x = torch.zeros(1 << 20, device=device), torch.zeros(1 << 20, device=device)
            five = torch.full((1 << 20,), 5.0, device=device)
        model(total, x, stream=stream)  # loads what is loaded once
        stream.synchronize()
        sleep(torch, stream)
        with torch.cuda.stream(stream):
            x.copy_(five)
        (twice,) = model(total, x, stream=stream)
        assert not stream.query(), "the run waited for its stream"
        with torch.cuda.stream(stream):
            seen = torch.from_dlpack(twice).clone()
        assert not stream.query(), "what reads on the same stream need not wait"
        stream.synchronize()
        assert seen.eq(10).all() and total.eq(5).all()


@one_gpu
def test_who_reads_on_another_stream_gets_what_is_ready(packages, torch):
    model = headrace.Model(packages / "accumulate.pt2")
    stream = torch.cuda.Stream()
    total, x = torch.zeros(1 << 20, device="cuda"), torch.full((1 << 20,), 4.0, device="cuda")
    torch.cuda.synchronize()
    model(total, x, stream=stream)
    sleep(torch, stream)
    (twice,) = model(total, x, stream=stream.cuda_stream)
    assert torch.from_dlpack(twice).eq(16).all()


@one_gpu
def test_without_a_stream_it_runs_on_torchs_current_one(packages, torch):
    model = headrace.Model(packages / "accumulate.pt2")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        total, x = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
        sleep(torch, stream)
        x.fill_(3)
        (twice,) = model(total, x)
        assert stream.query(), "the outputs are not ready"
        assert torch.from_dlpack(twice).eq(6).all()


@one_gpu
def test_memory_of_another_device_is_named(mlp, torch):
    model, _ = mlp("cuda:0")
    with pytest.raises(headrace.InvalidArgument, match="it is on cpu, and the model runs on cuda:0"):
        model(torch.zeros(2, 256))
    with pytest.raises(headrace.NotSupported, match=f"there is no cuda:{GPUS}: torch sees {GPUS} GPU"):
        mlp(f"cuda:{GPUS}")
    if GPUS > 1:
        with pytest.raises(headrace.InvalidArgument, match="it is on cuda:1, and the model runs on cuda:0"):
            model(torch.zeros(2, 256, device="cuda:1"))


@one_gpu
def test_memory_of_the_gpu_is_told(packages, torch):
    model = headrace.Model(packages / "accumulate.pt2")
    total, x = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    before = model.memory()
    kept = model(total, x)
    during = model.memory()
    assert during["device_bytes"] >= before["device_bytes"] + (4 << 20)
    del kept
    after = model.memory()
    assert after["device_bytes"] == before["device_bytes"]
    assert after["device_peak_bytes"] >= during["device_bytes"]
    assert after["device_used_bytes"] > after["device_bytes"]


@each_gpu
def test_constants_are_replaced_from_host_and_device(mlp, torch, device):
    model, _ = mlp(device)
    names = {constant["name"]: constant["shape"] for constant in model.constants()}
    x = torch.ones(2, 256, device=device)
    for source in ("cpu", device):
        model.replace_constants({name: torch.zeros(shape, device=source) for name, shape in names.items()})
        assert torch.from_dlpack(model(x)[0]).eq(0).all()
        model.replace_constants({"second.bias": torch.full((10,), 7.0, device=source)})
        assert torch.from_dlpack(model(x)[0]).eq(7).all()


@each_gpu
def test_the_command_copies_files_to_the_gpu_and_back(packages, mlp, torch, tmp_path, device):
    import numpy as np

    _, module = mlp(device)
    x = torch.randn(5, 256)
    np.save(tmp_path / "x.npy", x.numpy())
    with torch.no_grad():
        logits, hidden, same = (one.cpu().numpy() for one in module(x.to(device)))
    np.savez(tmp_path / "expected.npz", logits=logits, hidden=hidden, same=same)
    files = ["--input", f"x={tmp_path / 'x.npy'}", "--device", device, "--json"]
    said = run("infer", packages / "mlp.pt2", *files, "--output", tmp_path / "y.npz", "--runs", 20)
    assert said["device"] == device and said["runs"] == 20 and said["latency_us"]["p50"] > 0
    assert said["memory"]["device_used_bytes"] >= said["memory"]["device_peak_bytes"] > 0
    assert abs(np.load(tmp_path / "y.npz")["logits"] - logits).max() < 1e-3
    compared = run(
        "verify",
        packages / "mlp.pt2",
        *files,
        "--expect",
        tmp_path / "expected.npz",
        "--rtol",
        1e-3,
        "--atol",
        1e-3,
    )
    assert compared["passed"] and len(compared["outputs"]) == 3
    made_up = run(
        "infer",
        packages / "mlp.pt2",
        "--device",
        device,
        "--json",
        "--generate",
        "--dim",
        "batch=7",
        "--threads",
        2,
    )
    assert made_up["outputs"][0]["shape"] == [7, 10] and made_up["outputs"][0]["not_finite"] == 0


# From C


@pytest.fixture
def c_program(tmp_path):
    """tests/c/gpu_model_test.c, compiled on the library that this package loads."""
    library = Path(headrace.__file__).parent / "lib" / "libheadrace.so.0"
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler, "there is no C compiler"
    made = tmp_path / "gpu_model_test"
    source = ROOT / "tests" / "c" / "gpu_model_test.c"
    command = [
        compiler,
        "-std=c11",
        "-O1",
        f"-I{ROOT / 'include'}",
        source,
        "-o",
        made,
        library,
        f"-Wl,-rpath,{library.parent}",
        "-ldl",
        "-pthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


@each_gpu
def test_c_programs_run_models_on_memory_of_the_driver_and_on_streams_of_their_own(
    c_program, packages, device
):
    done = subprocess.run(
        [c_program, packages, device], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "models in GPU memory do what the C API says" in done.stdout


# The demo


@pytest.fixture
def demo(tmp_path):
    def start(*arguments, device):
        began = time.monotonic()
        folder = ROOT / "build" / "demo_gpu" / ("8b" if "8b" in arguments else "book")
        where = ["--packages", folder, "--python", sys.executable, "--device", device]
        weights = [] if "8b" in arguments else ["--model-weights", WEIGHTS]
        said = run("demo", *where, *weights, "--json", "--check", *arguments)
        print(
            f"{time.monotonic() - began:.1f} s:",
            {name: value for name, value in said.items() if name not in ("prompt", "text", "token_ids")},
        )
        return said

    os.environ["TMPDIR"], before = str(tmp_path), os.environ.get("TMPDIR")
    yield start
    del os.environ["TMPDIR"]
    if before is not None:
        os.environ["TMPDIR"] = before


# On what prefill and decode run, and how that is asked for.
DEMO_PLACES = [
    pytest.param("cuda:0", "cuda:0", "cuda:0", marks=one_gpu, id="one_gpu"),
    pytest.param("cuda", "cuda:0", "cuda:1", marks=two_gpus, id="two_gpus"),
]


@pytest.mark.parametrize("device, prefill, decode", DEMO_PLACES)
def test_the_demos_tokens_are_those_of_one_process_on_the_same_gpu(demo, device, prefill, decode):
    page = 64 if prefill == decode else 16
    said = demo("--tokens", 24, "--page", page, "--seed", 7, device=device)
    assert (said["prefill_device"], said["decode_device"], said["path"]) == (prefill, decode, "cuda_ipc")
    layers, token_bytes = 6, 2 * 2 * 32 * 4
    assert said["bytes"] == layers * -(-said["prompt_tokens"] // page) * page * token_bytes
    assert len(said["token_ids"]) == 24 and all(token < 256 for token in said["token_ids"])


@pytest.mark.parametrize("device, prefill, decode", DEMO_PLACES)
def test_the_large_shape_moves_its_pages_while_prefill_goes_on(demo, device, prefill, decode):
    said = demo("--shape", "8b", "--tokens", 16, device=device)
    assert (said["prefill_device"], said["decode_device"], said["path"]) == (prefill, decode, "cuda_ipc")
    assert said["prompt_tokens"] == 2048 and said["pages"] == 32 * 128
    assert said["bytes"] == 32 * 128 * 65536
    assert said["share_before_prefill_ended"] >= 0.7


@each_gpu
def test_the_parts_of_a_layer_with_experts_make_the_layer(torch, device):
    from headrace.demo_model import generate, pieces

    folder = ROOT / "build" / "demo_gpu" / "experts"
    weights = generate.Weights.load(WEIGHTS.with_name("experts.safetensors"), device)
    names = ("layer", "attention", "route", "expert")
    models = {name: headrace.Model(folder / f"{name}.pt2", device=device) for name in names}

    def made(name, *inputs):
        return [torch.from_dlpack(output) for output in models[name](*inputs)]

    for layer in weights.layers:
        x = torch.randn(5, 256, device=device)
        kv, slots = pieces.lay_out(torch.randn(2, 20, 2, 32, device=device), 16)
        whole, _, _ = made("layer", x, kv, slots, *layer)
        after, _, _ = made("attention", x, x, kv, slots, *layer[:3])
        row, chosen, shares = made("route", after, layer[3], layer[4])
        for token in range(5):
            for expert, share in zip(chosen[token].tolist(), shares[token]):
                weights_of_it = (matrix[expert].clone() for matrix in layer[5:])
                after[token] += share * made("expert", row[token : token + 1], *weights_of_it)[0][0]
        assert close(whole, after)
