# SPDX-License-Identifier: Apache-2.0
"""Exports the small packages that the tests of models run into a folder: export_models.py FOLDER.

A package is kept if the same torch made it from the same text of this file. Two processes compile half of the
packages each, which takes about half a minute.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import zipfile


def describe(package: pathlib.Path, spec: dict) -> None:
    """Appends the description that Headrace's export writes."""
    root = zipfile.ZipFile(package).namelist()[0].split("/")[0]
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/extra/headrace.json", json.dumps(spec))


def tensor(name: str, dtype: str, *shape) -> dict:
    return {"name": name, "dtype": dtype, "shape": list(shape), "strides": None, "optional": False}


HALVES = (("add", "mlp", "counter"), ("mixed", "convolution", "types"))


def export_some(folder: pathlib.Path, names: tuple[str, ...]) -> None:
    import torch
    from torch.export import Dim, export

    torch.manual_seed(0)

    def compile_package(name, module, arguments, dynamic=None, spec=None):
        assert any(name in half for half in HALVES), f"{name} is in neither half"
        if name not in names:
            return
        path = folder / f"{name}.pt2"
        path.unlink(missing_ok=True)
        program = export(module.eval(), arguments, dynamic_shapes=dynamic)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        if spec is not None:
            about = {
                "headrace_io": 1,
                "headrace": "0.1.0",
                "torch": torch.__version__,
                "device": "cpu",
                "mutated": [],
            }
            describe(path, about | spec)

    class Add(torch.nn.Module):
        def forward(self, x):
            return x + 1.0

    compile_package("add", Add(), (torch.randn(1024),))

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(256, 512)
            self.second = torch.nn.Linear(512, 10)

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            return self.second(hidden), hidden

    batch = {"name": "batch", "min": 1, "max": 64}
    mlp = Mlp()
    compile_package(
        "mlp",
        mlp,
        (torch.randn(4, 256),),
        {"x": {0: Dim("batch", min=1, max=64)}},
        {
            "inputs": [tensor("x", "float32", batch, 256)],
            "outputs": [tensor("logits", "float32", batch, 10), tensor("hidden", "float32", batch, 512)],
        },
    )
    if "mlp" in names:  # the results of eager torch, for `headrace verify`
        from safetensors_file import write_safetensors

        x = torch.randn(4, 256)
        logits, hidden = mlp(x)
        write_safetensors(folder / "mlp_inputs.safetensors", {"x": x})
        write_safetensors(folder / "mlp_outputs.safetensors", {"logits": logits, "hidden": hidden})

    class Mixed(torch.nn.Module):
        """Fused kernels, a matrix product, a lookup, and an input and a weight that are outputs unchanged."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
            self.table = torch.nn.Embedding(100, 8)

        def forward(self, a, bias, m, ids):
            return a * 2 + bias, m @ self.weight.T, self.table(ids), a, self.weight

    rows = {"name": "rows", "min": 1, "max": None}
    compile_package(
        "mixed",
        Mixed(),
        (torch.randn(16), torch.randn(16), torch.randn(8, 4), torch.zeros(5, dtype=torch.int64)),
        {"a": None, "bias": None, "m": {0: Dim("rows")}, "ids": None},
        {
            "inputs": [
                tensor("a", "float32", 16),
                tensor("bias", "float32", 16),
                tensor("m", "float32", rows, 4),
                tensor("ids", "int64", 5),
            ],
            "outputs": [],
        },
    )

    class Convolution(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return torch.relu(self.convolution(x)).mean((2, 3))

    compile_package("convolution", Convolution(), (torch.randn(1, 3, 32, 32),))

    class Types(torch.nn.Module):
        """Every type of one length; each output is the doubled input, or the inverted flag."""

        def forward(self, f64, f16, bf16, i8, i16, i32, i64, u8, flag, c64):
            numbers = [value + value for value in (f64, f16, bf16, i8, i16, i32, i64, u8)]
            return (*numbers, ~flag, c64 + c64)

    kinds = [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ]
    kinds += [torch.bool, torch.complex64]
    compile_package("types", Types(), tuple(torch.zeros(6, dtype=kind) for kind in kinds))

    class Counter(torch.nn.Module):
        """Writes into its second input."""

        def forward(self, x, total):
            total.add_(x.sum())
            return total * 2

    compile_package(
        "counter",
        Counter(),
        (torch.randn(8), torch.zeros(1)),
        spec={
            "inputs": [tensor("x", "float32", 8), tensor("total", "float32", 1)],
            "outputs": [tensor("double", "float32", 1)],
            "mutated": ["total"],
        },
    )


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        return export_some(folder, HALVES[int(sys.argv[2])])
    folder.mkdir(parents=True, exist_ok=True)
    version = (
        pathlib.Path(__import__("importlib.util", fromlist=["util"]).find_spec("torch").origin).parent
        / "version.py"
    )
    here = pathlib.Path(__file__)
    key = hashlib.sha256(here.read_bytes() + version.read_bytes()).hexdigest()
    stamp = folder / "made-by"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test programs of several builds share the folder
        if stamp.exists() and stamp.read_text() == key:
            return
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        command = [sys.executable, str(here), str(folder)]
        halves = [subprocess.Popen([*command, str(number)]) for number in range(len(HALVES))]
        if codes := [code for half in halves if (code := half.wait())]:
            sys.exit(f"a process that compiles packages ended with {codes[0]}")
        stamp.write_text(key)


if __name__ == "__main__":
    main()
