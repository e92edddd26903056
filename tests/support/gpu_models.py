# SPDX-License-Identifier: Apache-2.0
"""The modules that the tests of models on GPUs export: gpu_models.py FOLDER exports them with
headrace.export.

Each is compared with PyTorch during the export. A package is kept if the same torch made it from the same
text of this file.
"""

import fcntl
import hashlib
import sys
from pathlib import Path

import torch
from torch.export import Dim


class Mlp(torch.nn.Module):
    """Matrix products, a fused kernel, and an input that is an output unchanged."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(256, 512), torch.nn.Linear(512, 10)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(hidden), hidden, x


class Accumulate(torch.nn.Module):
    """Writes into its first input."""

    def forward(self, total, x):
        total.add_(x)
        return total * 2


def mlp():
    torch.manual_seed(0)
    batch = Dim("batch", min=1, max=64)
    return {
        "module": Mlp(),
        "args": (torch.randn(4, 256),),
        "dynamic_shapes": ({0: batch},),
        "output_names": ["logits", "hidden", "same"],
    }


def accumulate():
    return {"module": Accumulate(), "args": (torch.zeros(1 << 20), torch.ones(1 << 20))}


def export(folder: Path) -> None:
    from headrace.export import export_package
    from headrace.exporting.request import ExportRequest

    for make in (mlp, accumulate):
        export_package(ExportRequest(**make()), folder / f"{make.__name__}.pt2", device="cuda", verify=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made_of = hashlib.sha256(Path(__file__).read_bytes() + torch.__version__.encode()).hexdigest()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made_of").exists() or (folder / "made_of").read_text() != made_of:
            export(folder)
            (folder / "made_of").write_text(made_of)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
