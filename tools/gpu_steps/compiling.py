# SPDX-License-Identifier: Apache-2.0
"""What is compiled on the machine with GPUs: the extension for its Python, the runtime for its torch."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_steps import tree
from gpu_steps.collecting import nanobind_folder
from gpu_steps.sitting import TAIL_LINES, Sitting
from gpu_steps.tree import bare_loader

COMPILER = os.environ.get("CXX", "g++")


def extension(sitting: Sitting) -> bool:
    """The package: python/headrace, the extensions compiled for this interpreter, and the libraries next to
    them."""
    package = tree.SITE / "headrace"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = {
        "python": (tree.WORK / f"_headrace{suffix}", package),
        "compat_nixl": (tree.WORK / f"_compiled{suffix}", package / "compat" / "nixl"),
    }
    for bindings, (made, _) in modules.items():
        sources = sorted((tree.ROOT / "bindings" / bindings).glob("*.cpp"))
        newest = max(path.stat().st_mtime for path in sources)
        if made.exists() and made.stat().st_mtime >= newest:
            continue
        if not compile_extension(sitting, bindings, sources, made):
            return False
    shutil.rmtree(tree.SITE, ignore_errors=True)
    for name in ("headrace", "headrace_torch"):
        shutil.copytree(
            tree.ROOT / "python" / name, tree.SITE / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for made, folder in modules.values():
        shutil.copy2(made, folder / made.name)
    (package / "lib").symlink_to(sitting.carried / "lib")
    # As the installed package shows it: what loads, and what each backend says of this machine.
    program = (
        "import headrace, headrace.compat.nixl\n"
        "print(headrace.__version__, headrace.compat.nixl.nixl_agent.__module__)\n"
        "for b in headrace.list_backends(): print(b.name, b.loaded, b.refusal)"
    )
    return sitting.run([sys.executable, "-c", program])


def compile_extension(sitting: Sitting, bindings: str, sources: list[Path], target: Path) -> bool:
    """Compiles as cmake/parts.cmake does for the release build, without the packages that a configuration
    needs."""
    flags = [
        "-fno-strict-aliasing",
        "-ffunction-sections",
        "-fdata-sections",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    own_flags: dict[Path, list[str]] = {}
    libraries: list[str] = []
    if bindings == "python":
        nanobind = nanobind_folder(sitting.carried)
        if nanobind is None:
            return sitting.trouble("nanobind is neither carried nor installed")
        flags += [
            "-DNB_COMPACT_ASSERTIONS",
            f"-I{nanobind / 'include'}",
            f"-I{nanobind / 'ext' / 'robin_map' / 'include'}",
        ]
        combined = nanobind / "src" / "nb_combined.cpp"
        sources, own_flags = [combined, *sources], {combined: ["-DNB_BUILD"]}
        libraries = [str(sitting.carried / "lib" / "libheadrace.so.0")]
    # As Python 3.10 and 3.11 get it; failing that as the wheel for 3.12 and newer has it, with the limited
    # API.
    for api in [[], ["-DPy_LIMITED_API=0x030C0000"]][: 2 if sys.version_info >= (3, 12) else 1]:
        if objects := compile_objects(
            sitting, sources, [*flags, *api], tree.WORK / f"objects_{bindings}", own_flags
        ):
            break
    else:
        return False
    link = [
        COMPILER,
        "-shared",
        "-o",
        str(target),
        *map(str, objects),
        "-Wl,--gc-sections",
        "-Wl,-rpath,$ORIGIN/lib",
        f"-Wl,--version-script={tree.ROOT / 'cmake' / 'python_exports.map'}",
        *libraries,
        "-pthread",
    ]
    return sitting.run(link)


def compile_objects(
    sitting: Sitting,
    sources: list[Path],
    flags: list[str],
    folder: Path,
    own_flags: dict[Path, list[str]] | None = None,
    compiler: str = COMPILER,
) -> list[Path]:
    """Compiles each source into the folder, at most one at a time per core. Returns [] after the first errors
    if a source fails."""
    folder.mkdir(exist_ok=True)
    common = [
        "-std=c++20",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-w",
        f"-I{tree.ROOT}",
        f"-I{tree.ROOT / 'include'}",
    ]

    def compile_one(source: Path) -> tuple[Path, str]:
        made = folder / f"{source.stem}.o"
        command = [
            compiler,
            *common,
            *flags,
            *(own_flags or {}).get(source, []),
            "-c",
            str(source),
            "-o",
            str(made),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=sitting.step_seconds_left()
            )
        except subprocess.TimeoutExpired:
            return made, f"{source}: out of time"
        if done.returncode == 0:
            return made, ""
        return made, done.stderr or f"{source}: {compiler} {bare_loader.ended(done.returncode)}"

    with ThreadPoolExecutor(sitting.options.jobs or os.cpu_count() or 1) as pool:
        compiled = list(pool.map(compile_one, sources))
    errors = [text for _, text in compiled if text]
    if not errors:
        return [made for made, _ in compiled]
    sitting.note("\n".join(errors), show=False)
    print("\n".join(errors[0].splitlines()[:TAIL_LINES]))
    sitting.troubles.append(f"{len(errors)} of {len(sources)} sources do not compile")
    return []


def compile_torch_runtime(sitting: Sitting, compiler: str = COMPILER) -> bool:
    """Compiles libheadrace_torch.so and its note against the installed torch, as cmake/torch.cmake does."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return sitting.trouble("torch is not installed")
    root = Path(found.origin).parent
    about = runpy.run_path(str(root / "version.py"))
    version, kind = (
        about["__version__"],
        "rocm" if about.get("hip") else "cuda" if about.get("cuda") else "cpu",
    )
    flags = [
        f'-DHEADRACE_TORCH_VERSION="{version}"',
        f'-DHEADRACE_TORCH_ACCELERATOR="{kind}"',
        "-isystem",
        str(root / "include"),
        "-isystem",
        str(root / "include" / "torch" / "csrc" / "api" / "include"),
    ]
    if tuple(map(int, version.split(".")[:2])) >= (2, 13):
        flags.append("-DHEADRACE_TORCH_LOADS_FOLDERS")
    objects = compile_objects(
        sitting,
        sorted((tree.ROOT / "bindings" / "torch").glob("*.cpp")),
        flags,
        tree.WORK / "torch_objects",
        compiler=compiler,
    )
    if not objects:
        return False
    library = sitting.carried / "lib" / "libheadrace_torch.so"
    torch_libraries = [str(root / "lib" / f"lib{name}.so") for name in ("torch", "torch_cpu", "c10")]
    link = [
        compiler,
        "-shared",
        "-o",
        str(library),
        *map(str, objects),
        "-Wl,--no-as-needed",
        *torch_libraries,
        f"-Wl,-rpath,{root / 'lib'}",
    ]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    sitting.note(done.stderr, show=done.returncode != 0)
    if done.returncode != 0:
        return sitting.trouble(f"linking {library.name}: {compiler} {bare_loader.ended(done.returncode)}")
    library.with_suffix(".json").write_text(
        json.dumps({"torch": version, "accelerator": kind, "folder": str(root)}) + "\n"
    )
    return True
