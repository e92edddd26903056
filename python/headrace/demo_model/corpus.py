# SPDX-License-Identifier: Apache-2.0
"""Makes the training text of the model: the King James Bible from Debian's package bible-kjv-text.

    python -m headrace.demo_model.corpus --output corpus.txt

The text is in the public domain. The package has it compressed; the program `bible` of the package bible-kjv
prints it. Packages that are not installed are downloaded with `apt-get download` and unpacked next to the
output; nothing is installed. The result has one verse a line and an empty line between chapters, without
numbers and headings.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("bible-kjv", "bible-kjv-text")
DATA = Path("/usr/lib/bible.data")
HELD_OUT_EVERY = 20

_VERSE = re.compile(r"(\d?[A-Za-z]+\d+):\d+ +(.*)")


def split(text: str) -> tuple[str, str]:
    """Returns the training text and the held-out text: every twentieth chapter is held out."""
    chapters = text.split("\n\n")
    held_out = [chapter for i, chapter in enumerate(chapters) if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    training = [chapter for i, chapter in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return "\n\n".join(training), "\n\n".join(held_out)


def words(text: str) -> list[str]:
    """Returns the words of the text in lower case, without spaces and punctuation."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def command_line(module: str) -> str:
    """Returns the command line of this run for its report, without absolute folders of this machine."""
    arguments = [Path(argument).name if argument.startswith("/") else argument for argument in sys.argv[1:]]
    return " ".join(["python", "-m", f"headrace.demo_model.{module}", *arguments])


def _print_verses(scratch: Path) -> str:
    """Returns the output of the program: one verse a line, after its reference."""
    program, folder = shutil.which("bible"), DATA.parent
    if program is None or not DATA.exists():
        print(f"corpus: {' and '.join(PACKAGES)} are not installed: downloading them", file=sys.stderr)
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=scratch, check=True, stdout=sys.stderr)
        for package in scratch.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, scratch], check=True)
        program, folder = str(scratch / "usr/bin/bible"), scratch / DATA.parent.relative_to("/")
    # The program reads its data from the current folder; -f prints one verse a line with its reference.
    printed = subprocess.run([program, "-f", "Gen1:1-Rev22:21"], cwd=folder, check=True, capture_output=True)
    return printed.stdout.decode("ascii")


def clean(printed: str) -> str:
    """Returns the text with one verse a line and an empty line after each chapter."""
    lines: list[str] = []
    chapter = None
    for line in printed.splitlines():
        match = _VERSE.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"a line of the program `bible` is not a verse with its reference: {line!r}")
        if chapter is not None and match[1] != chapter:
            lines.append("")
        chapter = match[1]
        lines.append(" ".join(match[2].split()))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo_model.corpus", description="Writes the training text of the model."
    )
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    output: Path = parser.parse_args().output
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        text = clean(_print_verses(Path(scratch).resolve()))
    output.write_text(text, encoding="ascii")
    training, held_out = split(text)
    print(f"{output}: {len(text)} bytes, {len(training)} for training and {len(held_out)} held out")
    print(f"{len(set(words(text)))} different words; sha256 {digest(text)}")


if __name__ == "__main__":
    main()
