#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds out where PyTorch's own loader of compiled packages crashes on a machine, and what differs between
the cases that crash and those that do not. Nothing of Headrace takes part.

    python bench/gpu/aoti_crash.py --out aoti_crash.jsonl

Each case is a process of its own, with the stacks of Python and of the C++ code at a crash. A module of one
addition is compiled for the CPU and for the GPU, by the C++ compiler that PyTorch chooses and by the
system's; then each package is loaded in every way that there is. Prints a table of cases, the stacks of the
first crash of each kind, and what the machine is.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SYSTEM_COMPILER = "/usr/bin/g++"
LIBRARIES = re.compile(
    r"lib(stdc\+\+|gcc_s|c10\w*|torch\w*|cudart|cuda|nvrtc|gomp|iomp\w*|c)[-.\w]*\.so[.\d]*$"
)
PATIENCE = 100  # seconds for one case

# The handler of crashes: the native frames, then the maps, then the handler that was there before
# (faulthandler's).
HANDLER = r"""
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
static struct sigaction before[65];
static void say(const char* text) { if (write(2, text, strlen(text)) < 0) return; }
static void handle(int number, siginfo_t* info, void* context) {
  void* frames[40];
  (void)info, (void)context;
  say("native frames:\n");
  backtrace_symbols_fd(frames, backtrace(frames, 40), 2);
  say("maps:\n");
  int maps = open("/proc/self/maps", O_RDONLY);
  char part[4096];
  for (ssize_t got; maps >= 0 && (got = read(maps, part, sizeof part)) > 0;)
    if (write(2, part, (size_t)got) < 0) break;
  say("end of maps\n");
  sigaction(number, &before[number], 0);
}
void install(void) {
  void* warm[2];
  backtrace(warm, 2);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  const int numbers[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE};
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    sigaction(numbers[i], &action, &before[numbers[i]]);
}
"""

# The loader without Python, as a runner in C++ uses it.
CPP_LOADER = r"""
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <ATen/ATen.h>
#include <cstdio>
#include <string>
int main(int, char** argv) {
  const std::string package = argv[1], device = argv[2];
  std::puts("step load"), std::fflush(stdout);
  torch::inductor::AOTIModelPackageLoader loader(package, "model", true, 1, device == "cpu" ? -1 : 0);
  std::puts("step run"), std::fflush(stdout);
  const auto x = at::zeros({8}, at::TensorOptions().device(device));
  std::puts(loader.run({x})[0].sum().item<double>() == 8 ? "step done" : "wrong numbers");
}
"""


# In a child: one case


def begin(step: str) -> None:
    print(f"step {step}", flush=True)


def addition(device: str) -> Any:
    import torch

    class Addition(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    return Addition(), torch.zeros(8, device=device)


def child_import(device: str, _: str) -> None:
    begin("import")
    import torch

    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "cxx11_abi": torch.compiled_with_cxx11_abi(),
            }
        )
    )
    if device == "cuda":
        begin("count GPUs")
        print(
            json.dumps({"gpus": torch.cuda.device_count(), "capability": torch.cuda.get_device_capability(0)})
        )
    print(json.dumps({"libraries": loaded_libraries(Path("/proc/self/maps").read_text())}))


def child_compile(device: str, package: str, **config: Any) -> None:
    begin("import")
    import torch
    from torch._inductor import config as inductor

    begin("export")
    module, x = addition(device)
    exported = torch.export.export(module, (x,))
    begin("compile")
    wanted = {"precompile_headers": False, **config}
    configs = {
        f"aot_inductor.{name}": value
        for name, value in wanted.items()
        if hasattr(inductor.aot_inductor, name)
    }
    torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=configs)


def check(output: Any) -> None:
    if output.sum().item() != 8:
        sys.exit("wrong numbers")


def child_load(device: str, package: str, initialized: bool = False) -> None:
    """torch._inductor.aoti_load_package, which users call."""
    begin("import")
    import torch

    if initialized:
        begin("initialize the device")
        torch.zeros(1, device=device)
    begin("load")
    loaded = torch._inductor.aoti_load_package(package)
    begin("run")
    check(loaded(torch.zeros(8, device=device)))


def child_loader(device: str, package: str, single: bool = False, runners: int = 1, index: int = -1) -> None:
    """The class behind it."""
    begin("import")
    import torch

    begin("load")
    loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", single, runners, index)
    begin("run")
    check(loader.boxed_run([torch.zeros(8, device=device)])[0])


def child_runner(device: str, package: str) -> None:
    """The runner of an unpacked package's library, without the loader of packages."""
    begin("import")
    import torch

    library = unpack(Path(package))
    begin("load")
    runner: Any
    if device == "cpu":
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    else:
        runner = torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1, "cuda", str(library.parent))
    begin("run")
    check(runner.run([torch.zeros(8, device=device)])[0])


def child_dlopen(device: str, package: str, mode: int = os.RTLD_NOW) -> None:
    """The library alone; then a container made by its C interface."""
    begin("import")
    import torch

    if device == "cuda":
        torch.zeros(1, device=device)
    library = unpack(Path(package))
    begin("dlopen")
    opened = ctypes.CDLL(str(library), mode=mode)
    begin("create a container")
    handle = ctypes.c_void_p()
    create = opened.AOTInductorModelContainerCreateWithDevice
    create.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p]
    if code := create(ctypes.byref(handle), 1, device.encode(), str(library.parent).encode()):
        sys.exit(f"it answers {code}")
    begin("delete it")
    opened.AOTInductorModelContainerDelete(handle)


def child_jit(device: str, _: str, cpp_wrapper: bool = False) -> None:
    """torch.compile, whose code is loaded without a package."""
    begin("import")
    import torch

    begin("compile and run")
    module, x = addition(device)
    compiled: Any = torch.compile(module, options={"cpp_wrapper": cpp_wrapper})
    check(compiled(x))


CHILDREN: dict[str, Callable[..., None]] = {
    name.removeprefix("child_"): value for name, value in globals().items() if name.startswith("child_")
}


def unpack(package: Path) -> Path:
    """The library of a package, in a folder of this process's own."""
    folder = Path(tempfile.mkdtemp(dir=package.parent))
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    return next(folder.glob("*/data/aotinductor/model/*.wrapper.so"), None) or next(folder.rglob("*.so"))


def run_child(arguments: list[str]) -> None:
    import faulthandler

    name, device, package, options, handler = arguments
    faulthandler.enable(all_threads=False)
    if handler:
        ctypes.CDLL(handler).install()
    CHILDREN[name](device, package, **json.loads(options))
    begin("done")
    sys.stdout.flush()
    os._exit(0)  # what crashes on the way out is another matter


# In the parent


@dataclass
class Case:
    """One child, what differs in it, and how it ended."""

    name: str
    child: str
    device: str
    package: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)  # None: not set
    command: list[str] | None = None  # of a program that is not this one
    step: str = "not begun"
    ending: str = "not begun"
    seconds: float = 0.0
    frames: list[str] = field(default_factory=list)
    native: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    last_line: str = ""

    @property
    def works(self) -> bool:
        return self.ending == "exit code 0"


def loaded_libraries(maps: str) -> list[str]:
    """The libraries that matter, by path: two of one name are two copies in one process."""
    paths = {line.split(None, 5)[5].strip() for line in maps.splitlines() if len(line.split(None, 5)) == 6}
    return sorted(path for path in paths if LIBRARIES.search(path))


def ending_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"


class Sitting:
    """All cases of a run, and until when they may begin."""

    def __init__(self, folder: Path, seconds: float, parallel: int) -> None:
        self.folder, self.parallel = folder, parallel
        self.end = time.monotonic() + seconds
        self.handler = self.compile_handler()
        self.cases: list[Case] = []

    def compile_handler(self) -> str:
        """The handler's library; empty where there is no C compiler."""
        source, library = self.folder / "handler.c", self.folder / "handler.so"
        source.write_text(HANDLER)
        compiler = shutil.which("gcc") or shutil.which("cc")
        command = [compiler or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
        return str(library) if compiler and subprocess.run(command, check=False).returncode == 0 else ""

    def run(self, cases: list[Case]) -> list[Case]:
        """Runs them side by side. A child that crashes takes nothing else along."""
        self.cases += cases
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(self.run_one, cases))

    def run_one(self, case: Case) -> Case:
        left = self.end - time.monotonic()
        if left < 5:
            return case
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        # What loads a package finds out of the processor by compiling a little, once for all.
        own = "load" if case.child == "load" else re.sub(r"\W+", "_", case.name)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "cache" / own)
        for name, value in case.environment.items():
            environment.pop(name, None)
            environment.update({} if value is None else {name: value})
        command = case.command or [
            sys.executable, str(Path(__file__).resolve()), "--child", case.child, case.device, case.package,
            json.dumps(case.options), self.handler,
        ]  # fmt: skip
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                capture_output=True, errors="replace", timeout=min(PATIENCE, left), check=False,
            )  # fmt: skip
            case.ending, out, err = ending_of(done.returncode), done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            texts = [
                one.decode(errors="replace") if isinstance(one, bytes) else one or ""
                for one in (late.stdout, late.stderr)
            ]
            case.ending, (out, err) = "out of time", texts
        case.seconds = time.monotonic() - begun
        self.read(case, out, err)
        print(
            f"  {case.name}: {case.ending} in step {case.step}, {case.seconds:.0f} s {case.last_line[:150]}",
            flush=True,
        )
        return case

    @staticmethod
    def read(case: Case, out: str, err: str) -> None:
        steps = re.findall(r"^step (.*)$", out, re.MULTILINE)
        case.step = steps[-1] if steps else "start"
        for line in out.splitlines():
            if line.startswith("{"):
                case.said.update(json.loads(line))
        native, _, rest = err.partition("native frames:\n")[2].partition("maps:\n")
        maps, _, _ = rest.partition("end of maps")
        case.native = native.splitlines()[:25]
        case.libraries = loaded_libraries(maps)
        frames = re.findall(r'^  File "(.*?)", line (\d+) in (.*)$', err, re.MULTILINE)
        case.frames = [f"{file}:{line} {function}" for file, line, function in frames[:6]]
        if not case.works:
            words = [line for line in err.splitlines() if line.strip() and not line.startswith("  File")]
            case.last_line = "" if case.native else (words or [""])[-1]


def of_compiler(compiler: str) -> str:
    """Its version, and the C++ library that it links."""
    path = shutil.which(compiler)
    if path is None:
        return f"{compiler}: not there"
    answers = [
        subprocess.run([path, *arguments], capture_output=True, text=True, check=False).stdout.strip()
        for arguments in (
            ["-dumpfullversion"],
            ["-print-file-name=libstdc++.so.6"],
            ["-print-file-name=libstdc++.a"],
        )
    ]
    libraries = f"{os.path.realpath(answers[1])}, {answers[2]}"
    return f"{compiler}: {path} -> {Path(path).resolve()}, {answers[0]}, {libraries}"


def show_machine() -> None:
    def said_by(*command: str) -> str:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=20
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)

    print(
        f"system: {platform.platform()}; {Path('/proc/version').read_text().strip()}; {platform.libc_ver()}"
    )
    print(f"processor: {len(os.sched_getaffinity(0))} cores; stack {said_by('sh', '-c', 'ulimit -s')} KiB")
    print(
        "GPUs:",
        said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    )
    print(f"Python: {sys.version.split()[0]} {os.path.realpath(sys.executable)}")
    names = re.compile(
        r"^(CXX|CC|CFLAGS|CXXFLAGS|LD_.*|CUDA_.*|NVIDIA_.*|TORCH.*|PYTORCH.*|AOT.*|TRITON.*|PYTHON.*|TMPDIR|.*GLIBCXX.*|CONDA.*)$"
    )
    for name in sorted(name for name in os.environ if names.match(name)):
        print(f"environment: {name}={os.environ[name]}")
    for compiler in dict.fromkeys([os.environ.get("CXX") or "g++", "g++", SYSTEM_COMPILER, "c++", "clang++"]):
        print(f"compiler {of_compiler(compiler)}")
    for mount in Path("/proc/mounts").read_text().splitlines():
        if mount.split()[1] in ("/", "/tmp", "/dev/shm"):
            print(f"mount: {mount}")


def show_package(name: str, package: Path) -> None:
    """What its library is made of: who compiled it, what it needs, what it shows that others may take
    instead of their own."""
    library = unpack(package)
    compilers = sorted(set(re.findall(rb"(?:GCC: \(|clang version )[^\0]{0,60}", library.read_bytes())))
    by = ", ".join(one.decode(errors="replace") for one in compilers)
    print(f"package {name}: {library.stat().st_size} bytes; {by}")
    listing = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        if LIBRARIES.search(line.split(" ")[0].strip()) or "not found" in line:
            print(f"    {line.strip()}")
    if nm := shutil.which("nm"):
        symbols = subprocess.run(
            [nm, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=False
        ).stdout
        kinds = [line.split()[-2] for line in symbols.splitlines() if len(line.split()) >= 2]
        print(
            f"    shows {len(kinds)} symbols: {kinds.count('u')} unique, "
            f"{kinds.count('V') + kinds.count('W')} weak"
        )


def compile_cpp_loader(sitting: Sitting, compiler: str, name: str, with_cuda: bool) -> list[str] | None:
    """CPP_LOADER's program; None where it does not compile."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin or not shutil.which(compiler):
        return None
    root = Path(spec.origin).parent
    source, program = sitting.folder / "loader.cpp", sitting.folder / f"loader_{name}"
    source.write_text(CPP_LOADER)
    libraries = ["torch", "torch_cpu", "c10", *(["torch_cuda", "c10_cuda"] if with_cuda else [])]
    search = [root / "lib", *sorted(root.parent.glob("nvidia/*/lib"))]
    command = [compiler, "-std=c++20", "-O1", "-w", "-isystem", str(root / "include"), "-isystem",
               str(root / "include" / "torch" / "csrc" / "api" / "include"), str(source), "-o", str(program),
               "-Wl,--no-as-needed", *[str(root / "lib" / f"lib{one}.so") for one in libraries],
               *[f"-Wl,-rpath,{folder},-rpath-link,{folder}" for folder in search]]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(
            f"  the loader in C++ by {compiler}: {ending_of(done.returncode)}: {done.stderr.strip()[-400:]}",
            flush=True,
        )
        return None
    return [str(program)]


def packages_to_make(folder: Path, devices: list[str], compilers: dict[str, str | None]) -> list[Case]:
    made = []
    for device in devices:
        for name, compiler in compilers.items():
            environment: dict[str, str | None] = {"CXX": compiler} if compiler else {}
            made.append(
                Case(
                    f"compile {device} by {name}",
                    "compile",
                    device,
                    str(folder / f"{device}_{name}.pt2"),
                    environment=environment,
                )
            )
    if "cuda" in devices:
        embed = {"embed_kernel_binary": True}
        made.append(
            Case(
                "compile cuda by default, kernels embedded",
                "compile",
                "cuda",
                str(folder / "cuda_embedded.pt2"),
                embed,
            )
        )
    return made


def cpp_library(compiler: str) -> str:
    """The C++ library that a compiler links, by its path; empty where it has none of its own."""
    if not shutil.which(compiler):
        return ""
    command = [compiler, "-print-file-name=libstdc++.so.6"]
    named = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return os.path.realpath(named) if os.path.isabs(named) else ""


def ways_to_load(case: Case, gpus: int) -> list[Case]:
    """Every way, of the package of the default compiler; the first few, of the others."""
    device, package, of = case.device, case.package, case.name.removeprefix("compile ")
    ways = [
        Case(f"{of}: aoti_load_package", "load", device, package),
        Case(f"{of}: loader, single-threaded", "loader", device, package, {"single": True}),
        Case(f"{of}: container runner of the library", "runner", device, package),
        Case(f"{of}: dlopen, RTLD_NOW", "dlopen", device, package, {"mode": os.RTLD_NOW}),
        Case(
            f"{of}: dlopen, RTLD_DEEPBIND",
            "dlopen",
            device,
            package,
            {"mode": os.RTLD_NOW | os.RTLD_DEEPBIND},
        ),
    ]
    if not case.package.endswith("_default.pt2"):
        return ways
    ways += [
        Case(f"{of}: loader", "loader", device, package),
        Case(f"{of}: loader, 2 runners", "loader", device, package, {"runners": 2}),
        Case(f"{of}: dlopen, RTLD_LAZY", "dlopen", device, package, {"mode": os.RTLD_LAZY}),
        Case(f"{of}: dlopen, RTLD_GLOBAL", "dlopen", device, package, {"mode": os.RTLD_NOW | os.RTLD_GLOBAL}),
        Case(
            f"{of}: torch.load without weights_only",
            "load",
            device,
            package,
            environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        ),
    ]
    for library in dict.fromkeys(map(cpp_library, [os.environ.get("CXX") or "g++", SYSTEM_COMPILER])):
        if library:
            ways.append(
                Case(
                    f"{of}: with {library} loaded first",
                    "load",
                    device,
                    package,
                    environment={"LD_PRELOAD": library},
                )
            )
    if os.environ.get("LD_LIBRARY_PATH"):
        ways.append(
            Case(
                f"{of}: without LD_LIBRARY_PATH",
                "load",
                device,
                package,
                environment={"LD_LIBRARY_PATH": None},
            )
        )
    if device == "cuda":
        visible = None if os.environ.get("CUDA_VISIBLE_DEVICES") else "0"
        ways += [
            Case(f"{of}: after the device is initialized", "load", device, package, {"initialized": True}),
            Case(f"{of}: loader, device index 0", "loader", device, package, {"index": 0}),
            Case(f"{of}: loader, single-threaded, index 0", "loader", device, package,
                 {"single": True, "index": 0}),
            Case(f"{of}: CUDA_VISIBLE_DEVICES {visible or 'not set'}", "load", device, package,
                 environment={"CUDA_VISIBLE_DEVICES": visible}),
            Case(f"{of}: modules loaded eagerly", "load", device, package,
                 environment={"CUDA_MODULE_LOADING": "EAGER"}),
        ]  # fmt: skip
        if gpus > 1:
            ways.append(
                Case(f"{of}: loader, device index {gpus - 1}", "loader", device, package, {"index": gpus - 1})
            )
    return ways


def show(cases: list[Case]) -> None:
    print("\ncases")
    for case in cases:
        print(f"  {'ok' if case.works else case.ending:<20} {case.step:<24} {case.name}")
    seen: set[tuple[str, ...]] = set()
    for case in (case for case in cases if case.ending.startswith("signal")):
        # The first two frames are the handler's; addresses and folders differ from process to process.
        places = [re.sub(r"^.*/|\[0x[0-9a-f]+\]$", "", frame) for frame in case.native[2:6]]
        kind = (case.ending, case.step, *places)
        if kind in seen:
            continue
        seen.add(kind)
        print(f"\n{case.name}: {case.ending} in step {case.step}")
        for title, lines in (("Python", case.frames), ("native", case.native), ("libraries", case.libraries)):
            print("".join(f"  {title}: {line}\n" for line in lines), end="")
    bad = [case.name for case in cases if not case.works and case.ending != "not begun"]
    print(f"\n{sum(case.works for case in cases)} of {len(cases)} cases work; {len(bad)} do not")
    print("".join(f"  {name}\n" for name in bad), end="")
    print(f"not begun, no time left: {sum(case.ending == 'not begun' for case in cases)}")


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=225, help="after this time every case ends (default: 225)"
    )
    parser.add_argument("--devices", default="cpu,cuda", help="cpu, cuda or both (default)")
    parser.add_argument(
        "--parallel", type=int, default=max(2, len(os.sched_getaffinity(0)) // 2), help="cases side by side"
    )
    parser.add_argument("--out", type=Path, help="file for the cases, one line of JSON per case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aoti-crash-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        sitting = Sitting(folder, options.seconds, options.parallel)
        show_machine()
        devices = options.devices.split(",")
        (first,) = sitting.run([Case("import", "import", devices[-1])])
        print("".join(f"{key}: {value}\n" for key, value in first.said.items() if key != "libraries"), end="")
        print("".join(f"loaded: {path}\n" for path in first.said.get("libraries", [])), end="")
        # Where CXX names the system's, one package is enough.
        default = os.environ.get("CXX") or "g++"
        chosen = shutil.which(default)
        compilers: dict[str, str | None] = {"default": None}
        if chosen is None or os.path.realpath(chosen) != os.path.realpath(SYSTEM_COMPILER):
            compilers["system"] = SYSTEM_COMPILER
        to_make = packages_to_make(folder, devices, compilers)
        jit = [
            Case(f"torch.compile {device}, cpp_wrapper {wrapper}", "jit", device,
                 options={"cpp_wrapper": wrapper})
            for device in devices for wrapper in (False, True)
        ]  # fmt: skip
        with ThreadPoolExecutor(2) as pool:
            loaders = {
                name: pool.submit(compile_cpp_loader, sitting, compiler or default, name, "cuda" in devices)
                for name, compiler in compilers.items()
            }  # fmt: skip
            sitting.run(to_make)
            programs = {name: made.result() for name, made in loaders.items()}
        made = [case for case in to_make if Path(case.package).exists()]
        for case in made:
            show_package(case.name, Path(case.package))
        ways = [way for case in made for way in ways_to_load(case, int(first.said.get("gpus", 0)))]
        ways += [
            Case(f"{case.name.removeprefix('compile ')}: loader in C++ by {by}", "", case.device,
                 command=[*program, case.package, case.device])
            for case in made for by, program in programs.items() if program
        ]  # fmt: skip
        sitting.run([*ways, *jit])
        show(sitting.cases)
        if options.out:
            options.out.write_text("".join(json.dumps(vars(case)) + "\n" for case in sitting.cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
