# SPDX-License-Identifier: Apache-2.0
"""Reports the files that Python processes of a test open, list, copy, or name to other programs.

The folder is on PYTHONPATH, so each Python process of the test imports this at its start. The dynamic loader
reports the rest: programs and shared objects that are loaded. tools/testing/seen.py reads the reports.
"""

from __future__ import annotations

import os
import sys

FOLDER = os.environ.get("HEADRACE_SEEN_FOLDER", "")
WITHIN, WITHOUT = (
    tuple(filter(None, os.environ.get(f"HEADRACE_SEEN_{name}", "").split(os.pathsep)))
    for name in ("WITHIN", "WITHOUT")
)
PATH_EVENTS = {"open", "os.listdir", "os.scandir", "os.link", "os.symlink", "os.rename"}
COMMAND_EVENTS = {"subprocess.Popen": 3, "os.exec": 2, "os.posix_spawn": 2}  # the place of the environment

told: set[str] = set()


def tell(line: str) -> None:
    """Appends a line at once: the process may be killed."""
    if line not in told:
        told.add(line)
        file = os.open(f"{FOLDER}/python.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{line}\n".encode(errors="surrogateescape"))
        os.close(file)


def depth(path: str, folders: tuple[str, ...]) -> int:
    """Returns the length of the deepest of these folders that holds the path; 0 if none does."""
    return max((len(each) for each in folders if path == each or path.startswith(f"{each}/")), default=0)


def tell_path(kind: str, path: str) -> None:
    if depth(path, WITHIN) > depth(path, WITHOUT):
        tell(f"{kind} {path}")


def words_of(command: object) -> list[str]:
    words = command if isinstance(command, (list, tuple)) else [command]
    return [os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike))]


def tell_command(command: object, environment: object) -> None:
    if environment is not None and "LD_DEBUG" not in words_of(list(environment)):  # type: ignore[call-overload]
        tell("unseen")  # it reports nothing itself
    for word in words_of(command):
        for folder in WITHIN:
            at = word.find(folder)
            while at >= 0:
                end = next((i for i in range(at, len(word)) if word[i] in " \t\n'\":;,()"), len(word))
                tell_path("word", word[at:end])
                at = word.find(folder, end)


def look(event: str, arguments: tuple[object, ...]) -> None:
    if event in PATH_EVENTS and isinstance(arguments[0], (str, bytes, os.PathLike)):
        tell_path("path", os.path.abspath(os.fsdecode(arguments[0])))
    elif event in COMMAND_EVENTS:
        tell_command(arguments[1], arguments[COMMAND_EVENTS[event]])


if FOLDER and WITHIN:
    sys.addaudithook(look)
