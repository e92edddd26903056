# SPDX-License-Identifier: Apache-2.0
"""The environment of tests/connectors: inference servers in build/connectors, beside the packages of .venv.

pip installs the servers without what they require: they run on the torch of .venv, and
tests/connectors/requirements.txt has the packages that their connectors import.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from testing.stage import BUILD, REPORTS, ROOT, Runner, Stage

FOLDER = BUILD / "connectors"
PYTHON = FOLDER / "bin" / "python"
SERVERS = ["vllm==0.33.0", "sglang==0.5.23", "lmcache==0.5.6"]
REQUIREMENTS = ["-r", "tests/connectors/requirements.txt"]
DROP_IN = ["--no-build-isolation", "--force-reinstall", "./packaging/headrace_nixl"]


def prepare(runner: Runner, stage: Stage, base: Path) -> bool:
    """Makes the environment. Returns whether it has a server; the others are skipped with pip's sentence."""
    command = [str(base), "-m", "venv", "--without-pip", str(FOLDER)]
    if not stage.check(runner.command(stage, command), "python -m venv"):
        return False
    (site_packages(PYTHON) / "packages_of_venv.pth").write_text(f"{site_packages(base)}\n")
    if sentence := install(runner, stage, base, "drop-in", DROP_IN):
        return stage.check(False, "pip install ./packaging/headrace_nixl", sentence)
    if sentence := install(runner, stage, base, "requirements", ["--only-binary", ":all:", *REQUIREMENTS]):
        stage.skip("connectors", skip_reason(REQUIREMENTS[-1], sentence), runner.allowed_skips)
        return False
    installed = [server for server in SERVERS if has_server(runner, stage, base, server)]
    return bool(installed)


def has_server(runner: Runner, stage: Stage, base: Path, server: str) -> bool:
    name = server.partition("==")[0]
    # A source package would build for an hour.
    sentence = install(runner, stage, base, name, ["--only-binary", ":all:", server])
    if sentence:
        stage.skip(name, skip_reason(server, sentence), runner.allowed_skips)
    return not sentence


def install(runner: Runner, stage: Stage, base: Path, name: str, what: list[str]) -> str:
    """Returns nothing, or the sentence with which pip failed."""
    print(f"  pip install {what[-1]}", flush=True)
    log = REPORTS / f"connectors.{name}.log"
    log.unlink(missing_ok=True)
    command = [str(base), "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", *what]
    if runner.command(stage, command, quiet=True, log_name=log.stem):
        return ""
    return pips_sentence(log.read_text(errors="replace"))


def pips_sentence(output: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else "pip failed without a sentence"


def skip_reason(what: str, sentence: str) -> str:
    return f"pip cannot install {what}: {sentence}"


def site_packages(python: Path) -> Path:
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())
