# SPDX-License-Identifier: Apache-2.0
"""The kernels of collectives and of MoE, by programs of their own."""

from __future__ import annotations

from gpu_steps.bare import carried_program
from gpu_steps.pytests import pytest
from gpu_steps.sanitizer import sanitized, sanitizer_command
from gpu_steps.sitting import Sitting


def collectives(sitting: Sitting) -> bool:
    """The kernels of collectives, of ranks that share a GPU: under compute-sanitizer, and their times in turn
    with bare kernels."""
    program = str(sitting.carried / "bench" / "bench_gpu_collectives")
    examined = sanitized(sitting, [*sanitizer_command("memcheck"), program, "quick"], {})
    four = sitting.run([program, "time", "--ranks", "4"], rows=True)
    two = sitting.run([program, "time", "--ranks", "2"], rows=True, case_suffix="/ranks2")
    return four and two and examined


def collectives_long(sitting: Sitting) -> bool:
    """All answers of the kernels of collectives: operations, types, reductions, billions of elements; and
    racecheck."""
    program = str(sitting.carried / "bench" / "bench_gpu_collectives")
    right = sitting.run([program, "check"], tail=8)
    right = pytest(sitting, "slow", file="test_gpu_comm.py", report="test_gpu_billions") and right
    return sanitized(sitting, [*sanitizer_command("racecheck"), program, "quick"], {}) and right


def copy_engines(sitting: Sitting) -> bool:
    """What is only moved over `p2p`, by kernels and by copy engines, eagerly and in graphs: 1 MiB to 256 MiB.
    From where on copies take no longer, the hint copy_bytes pays."""
    command = [carried_program(sitting, "bin/headrace"), "bench", "coll", "--json", "--device", "cuda"]
    command += ["--backend", "p2p", "--ranks", str(max(2, sitting.gpus)), "--seconds", "1"]
    command += ["--ops", "all_gather_single,broadcast,all_to_all_single", "--bytes", "1M,16M,64M,256M"]
    right = True
    for graph in ([], ["--graph"]):
        for name, bytes_ in (("kernels", "0"), ("copies", "1")):
            for slots in ("64", "256"):
                hints = ["--hint", f"copy_bytes={bytes_}", "--hint", f"slots={slots}"]
                suffix = f"/{name}/slots{slots}"
                right = sitting.run([*command, *hints, *graph], rows=True, case_suffix=suffix) and right
    return right


def moe(sitting: Sitting) -> bool:
    """The kernels of MoE, of ranks that share a GPU: random shapes beside the CPU reference, replays whose
    routing changes, compute-sanitizer, and times in turn with bare kernels. Each part has its own end."""
    program = str(sitting.carried / "bench" / "bench_gpu_moe")
    right = sitting.run([program, "check", "--seconds", "50"], tail=12)
    right = sitting.run([program, "soak", "--seconds", "100"], tail=4) and right
    right = sanitized(sitting, [*sanitizer_command("memcheck"), program, "quick"], {}) and right
    return sitting.run([program, "time", "--seconds", "100"], rows=True) and right


def moe_command(sitting: Sitting) -> bool:
    """headrace.MoE by the command, all rows compared: threads and processes that share a GPU, in graphs and
    not, groups, uneven ranks; then times of few and of many tokens."""
    command = [carried_program(sitting, "bin/headrace"), "bench", "moe", "--device", "cuda", "--json"]
    compared = ["--check", "--repeats", "20", "--warm-up", "2", "--seconds", "10", "--tokens", "1,100"]
    right = True
    for shape in (
        ["--ranks", "2", "--routing", "all"],
        ["--ranks", "3", "--experts", "20", "--hidden", "2048", "--type", "bfloat16", "--blocks", "8"],
        ["--ranks", "4", "--group-size", "2", "--combine-type", "float32"],
        ["--ranks", "2", "--graph"],
        ["--ranks", "2", "--processes"],
    ):
        right = sitting.run([*command, *compared, *shape], rows=True) and right
    times = [
        "--ranks",
        "4",
        "--graph",
        "--blocks",
        "16",
        "--seconds",
        "4",
        "--tokens",
        "1,8,32,128,1024,4096",
    ]
    return sitting.run([*command, *times], rows=True) and right


def moe_racecheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds races in shared memory of the kernels of MoE, on small shapes."""
    program = str(sitting.carried / "bench" / "bench_gpu_moe")
    return sanitized(sitting, [*sanitizer_command("racecheck"), program, "quick"], {})
