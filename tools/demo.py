#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moves a model's weights from one process to two others at once: first over shared memory, then over TCP.

It makes a safetensors file of a llama-like model with new random weights and serves it with `headrace serve`.
Two `headrace pull` processes copy it at the same time, over each path in turn. Each copy is compared with the
source byte by byte; the exit code is 1 if one differs. It needs only Python's standard library and the
command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "I64": 8}
PULLERS = 2
START_SECONDS, PULL_SECONDS = 120, 600
CHUNK = 8 << 20

Tensor = tuple[str, str, list[int]]  # name, type, shape


def layer(number: int, hidden: int, inner: int) -> list[Tensor]:
    name, small = f"model.layers.{number}", hidden // 4
    return [
        (f"{name}.input_layernorm.weight", "F32", [hidden]),
        (f"{name}.self_attn.q_proj.weight", "BF16", [hidden, hidden]),
        (f"{name}.self_attn.k_proj.weight", "BF16", [small, hidden]),
        (f"{name}.self_attn.v_proj.weight", "BF16", [small, hidden]),
        (f"{name}.self_attn.o_proj.weight", "BF16", [hidden, hidden]),
        (f"{name}.post_attention_layernorm.weight", "F32", [hidden]),
        (f"{name}.mlp.gate_proj.weight", "BF16", [inner, hidden]),
        (f"{name}.mlp.up_proj.weight", "BF16", [inner, hidden]),
        (f"{name}.mlp.down_proj.weight", "F16", [hidden, inner]),
    ]


def tensor_bytes(tensor: Tensor) -> int:
    size = ELEMENT_BYTES[tensor[1]]
    for length in tensor[2]:
        size *= length
    return size


def model(total_bytes: int) -> list[Tensor]:
    """Returns tensors of about `total_bytes` in all; some have odd lengths, and one is empty."""
    hidden = 768 if total_bytes >= 128 << 20 else 256
    inner, vocabulary = 8 * hidden // 3 + 3, 16 * hidden + 1
    tensors: list[Tensor] = [
        ("model.embed_tokens.weight", "BF16", [vocabulary, hidden]),
        ("model.rotary_emb.inv_freq", "F32", [hidden // 16 + 1]),
        ("model.position_ids", "I64", [1, 1021]),
        ("model.unused_adapter.weight", "F16", [0, hidden]),
        ("model.causal_mask", "BOOL", [3, 5, 7]),
        ("model.logit_scale", "F32", []),
        ("model.norm.weight", "F32", [hidden]),
        ("lm_head.weight", "F16", [vocabulary, hidden]),
    ]
    left = total_bytes - sum(map(tensor_bytes, tensors))
    for number in range(max(1, round(left / sum(map(tensor_bytes, layer(0, hidden, inner)))))):
        tensors += layer(number, hidden, inner)
    return tensors


def write_model(path: Path, total_bytes: int) -> tuple[int, int]:
    """Writes the file. Returns the number of tensors and their bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "made_by": "demo"}}
    offset = 0
    tensors = model(total_bytes)
    for tensor in tensors:
        size = tensor_bytes(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": tensor[2], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(os.urandom(16))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, offset, CHUNK):
            file.write(generator.randbytes(min(CHUNK, offset - at)))
    return len(tensors), offset


def same_bytes(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        while chunk := a.read(CHUNK):
            if chunk != b.read(CHUNK):
                return False
    return True


def find_command(given: str | None) -> str:
    built = ROOT / "build" / "release" / "bin" / "headrace"
    command = given or shutil.which("headrace") or (str(built) if built.exists() else None)
    if command is None:
        sys.exit("demo: there is no headrace command: run `make demo-weights`, or name it with --command")
    return command


def ending_of(code: int) -> str:
    """Returns subprocess's return code as words: "exit code 1", "signal 11 (SIGSEGV)"."""
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


class Server:
    """A process of `headrace serve`; it ends with the with-block."""

    def __init__(self, command: str, file: Path, load: bool):
        arguments = [command, "serve", str(file), "--json", *(["--load"] if load else [])]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        try:
            ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
            line = self.process.stdout.readline() if ready else ""
            if not line:
                code = self.process.poll()
                how = "it runs but prints nothing" if code is None else ending_of(code)
                raise RuntimeError(f"headrace serve did not start within {START_SECONDS} s: {how}")
            self.address = json.loads(line)["address"]
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def pull_at_once(command: str, address: str, backend: str, outputs: list[Path]) -> list[dict[str, Any]]:
    """Starts all pulls at the same time, waits for all, and returns their reports."""
    pulls = [
        subprocess.Popen(
            [command, "pull", address, "-o", str(output), "--backend", backend, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for output in outputs
    ]
    reports = []
    try:
        for pull in pulls:
            answer, _ = pull.communicate(timeout=PULL_SECONDS)
            if pull.returncode != 0:
                raise RuntimeError(f"headrace pull over {backend} ended with {ending_of(pull.returncode)}")
            reports.append(json.loads(answer))
    finally:
        for pull in pulls:
            if pull.poll() is None:
                pull.kill()
                pull.wait()
    return reports


def run(command: str, folder: Path, options: argparse.Namespace) -> bool:
    source = folder / "model.safetensors"
    start = time.monotonic()
    count, size = write_model(source, options.megabytes * 1_000_000)
    print(
        f"made {count} tensors, {size / 1e6:.1f} MB of random weights, in {time.monotonic() - start:.1f} s",
        flush=True,
    )
    start = time.monotonic()
    alike = True
    lines = [
        f"{'path':<5} {'pull':>4} {'tensors':>8} {'MB':>8} {'seconds':>8} {'GB/s':>6}  compared with the "
        f"source"
    ]
    with Server(command, source, not options.map) as server:
        print(
            f"serving at {server.address}, ready after {time.monotonic() - start:.1f} s; {PULLERS} pulls at "
            f"once",
            flush=True,
        )
        for backend in ("shm", "tcp"):
            outputs = [folder / f"{backend}-{number}.safetensors" for number in range(PULLERS)]
            for number, report in enumerate(pull_at_once(command, server.address, backend, outputs)):
                same = (
                    report["path"] == backend
                    and report["tensors"] == count
                    and same_bytes(source, outputs[number])
                )
                alike = alike and same
                lines.append(
                    f"{report['path']:<5} {number + 1:>4} {report['tensors']:>8} "
                    f"{report['bytes'] / 1e6:>8.1f} {report['seconds']:>8.3f} "
                    f"{report['GB/s']:>6.2f}  {'the same, byte by byte' if same else 'DIFFERENT'}"
                )
                outputs[number].unlink()
        if (code := server.stop()) != 0:
            raise RuntimeError(f"headrace serve ended with {ending_of(code)}")
    print("\n".join(["", *lines]))
    print(
        "(the first pulls are slower on a virtual machine that has returned free memory to its host: "
        "bench/notes/shm.md)"
    )
    return alike


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256, help="size of the weights in MB (default: 256)")
    parser.add_argument(
        "--command", help="the headrace command (default: from the PATH, otherwise from the release build)"
    )
    parser.add_argument(
        "--map", action="store_true", help="serve the mapped file instead of a copy in shared memory"
    )
    options = parser.parse_args()
    command = find_command(options.command)
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        alike = run(command, folder, options)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print("all files are the same" if alike else "demo: a file differs from its source")
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
