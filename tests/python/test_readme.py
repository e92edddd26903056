# SPDX-License-Identifier: Apache-2.0
"""The programs in the README work. The C++ test example.readme runs the steps for the C++ program."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_two_python_programs_of_the_readme_move_pages_between_processes(tmp_path):
    for name, program in zip(("prefill.py", "decode.py"), blocks("python"), strict=True):
        assert program.startswith(f"# {name}")
        (tmp_path / name).write_text(program)
    with subprocess.Popen(
        [sys.executable, "prefill.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as prefill:
        try:
            address = prefill.stdout.readline().strip()
            decode = subprocess.run(
                [sys.executable, "decode.py", address],
                cwd=tmp_path,
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert decode.returncode == 0, decode.stderr
            assert decode.stdout.startswith("42.0 ")  # the value that prefill.py put into page 7
            assert prefill.wait(timeout=120) == 0
            assert "took pages 7 and 3" in prefill.stdout.read()
        finally:
            prefill.kill()


def test_the_cpp_program_of_the_readme_is_the_example_that_runs_as_a_test():
    (program,) = blocks("cpp")
    example = (ROOT / "examples" / "first_steps.cpp").read_text()
    assert example.endswith("\n" + program)


def test_the_readme_has_at_most_150_lines():
    assert len(README.splitlines()) <= 150


def test_every_file_that_the_readme_links_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
