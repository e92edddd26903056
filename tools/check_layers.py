#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the includes by the rules of layers.toml: a file includes only rooms of a lower level.

Usage: check_layers.py [ROOT]   prints each include that breaks a rule; the exit code is 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

SUFFIXES = {".cpp", ".hpp", ".h", ".cc", ".c", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
TEST_SUFFIX = "_test.cpp"


@dataclass
class Folder:
    """The rules of a folder outside src/."""

    rooms: list[str]
    public: list[str]
    each: bool = False
    shared: list[str] = field(default_factory=list)


@dataclass
class Rules:
    """The rules of layers.toml."""

    rooms: dict[str, int]
    folders: dict[str, Folder]
    foreign: dict[str, list[str]] = field(default_factory=dict)
    foreign_only: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Rules:
        table = tomllib.loads(path.read_text())
        folders = {name: Folder(**folder) for name, folder in table.get("folders", {}).items()}
        rules = cls(table["rooms"], folders, table.get("foreign", {}), table.get("foreign_only", {}))
        for name, folder in rules.folders.items():
            for room in folder.rooms:
                if room not in rules.rooms:
                    raise ValueError(
                        f"layers.toml: folder {name} names the room {room}, but [rooms] does not have it"
                    )
        return rules


@dataclass(frozen=True)
class Place:
    """The place of a file: a room of src/, or a folder with rules of its own."""

    name: str
    is_room: bool

    def __str__(self) -> str:
        return f"src/{self.name}" if self.is_room else self.name


def place_of(path: Path, rules: Rules) -> Place | None:
    """Returns the place of a file, whose path is relative to the root; None if no rule applies (tests,
    benchmarks)."""
    parts = path.parts
    if parts[0] == "src" and len(parts) > 2:
        return Place(parts[1], True)
    text = path.as_posix()
    matches = [name for name in rules.folders if text.startswith(name + "/")]
    return Place(max(matches, key=len), False) if matches else None


def is_foreign(header: str, quoted: bool, root: Path, file: Path, rules: Rules) -> bool:
    """Returns whether a header is of the standard library, the system or another project."""
    if header.startswith("headrace/"):
        return False
    if quoted and (file.parent / header).exists():
        return False
    if "/" not in header:  # <memory> is a header of the standard library, not the room
        return True
    first = header.split("/")[0]
    return first not in rules.rooms and not (root / header).exists() and not (root / "src" / header).exists()


SYSTEM_FOLDERS = {"sys", "linux", "netinet", "arpa", "net", "asm"}
SYSTEM_HEADERS = {
    "assert.h", "cpuid.h", "cxxabi.h", "dirent.h", "dlfcn.h", "elf.h", "errno.h", "execinfo.h", "fcntl.h",
    "ifaddrs.h", "immintrin.h", "limits.h", "link.h", "math.h", "netdb.h", "poll.h", "pthread.h", "pwd.h",
    "sched.h", "signal.h", "spawn.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h",
    "strings.h", "termios.h", "time.h", "unistd.h",
}  # fmt: skip


def is_standard(header: str) -> bool:
    """Returns whether a header is of the C++ library (it has no suffix) or of the system (it is in the
    list)."""
    if "/" in header:
        return header.split("/")[0] in SYSTEM_FOLDERS
    return "." not in header or header in SYSTEM_HEADERS


def complaint(place: Place, file: Path, header: str, quoted: bool, root: Path, rules: Rules) -> str | None:
    """Returns the rule that this include breaks, as a text; None if it breaks none."""
    if is_foreign(header, quoted, root, root / file, rules):
        for prefix, users in rules.foreign.items():
            if header.startswith(prefix) and place.name not in users:
                return f"only {', '.join(users)} may include {prefix}"
        allowed = rules.foreign_only.get(place.name)
        if allowed is not None and not is_standard(header) and not any(header.startswith(a) for a in allowed):
            return f"of other projects {place} may include {', '.join(allowed) or 'no header'} only"
        return None

    if header.startswith("headrace/"):
        if place.is_room or any(header.startswith(p) for p in rules.folders[place.name].public):
            return None
        return f"{place} may not include <headrace/...>"

    target = (root / file).parent / header
    if quoted and target.exists():
        inside = target.resolve().relative_to(root.resolve())
    elif (root / "src" / header).exists() or header.split("/")[0] in rules.rooms:
        inside = Path("src") / header
    else:
        inside = Path(header)

    if inside.parts[0] == "src" and len(inside.parts) > 2:
        return room_complaint(place, inside.parts[1], rules)
    if place.is_room:
        return f"{place} may include only rooms and <headrace/...>, and {inside.as_posix()} is neither"
    folder = rules.folders[place.name]
    own = Path(*file.parts[: len(Path(place.name).parts) + 1]) if folder.each else Path(place.name)
    if any(inside.is_relative_to(part) for part in (own, *map(Path, folder.shared))):
        return None
    return f"{own.as_posix()} may not include {inside.as_posix()}, which belongs to another part"


def room_complaint(place: Place, room: str, rules: Rules) -> str | None:
    if room not in rules.rooms:
        return f"src/{room} has no level: add it to [rooms] in layers.toml"
    if not place.is_room:
        allowed = rules.folders[place.name].rooms
        if room in allowed:
            return None
        return f"{place} may include {', '.join(allowed) if allowed else 'no room'}, not {room}"
    if room == place.name:
        return None
    here, there = rules.rooms[place.name], rules.rooms[room]
    if there < here:
        return None
    direction = "sideways" if there == here else "upward"
    return f"{place.name} (level {here}) includes {room} (level {there}), which goes {direction}"


def check(root: Path) -> tuple[int, list[str]]:
    """Returns the number of files read, and one line per include that breaks a rule."""
    rules = Rules.read(root / "layers.toml")
    problems: list[str] = []
    count = 0
    tops = ["src", *{Path(name).parts[0] for name in rules.folders}]
    for file in sorted(p for top in tops for p in (root / top).rglob("*") if p.suffix in SUFFIXES):
        path = file.relative_to(root)
        place = place_of(path, rules)
        if place is None or path.name.endswith(TEST_SUFFIX):
            continue
        count += 1
        if place.is_room and place.name not in rules.rooms:
            problems.append(f"{path}: src/{place.name} has no level: add it to [rooms] in layers.toml")
            continue
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
            match = INCLUDE.match(line)
            if not match:
                continue
            problem = complaint(place, path, match[2], match[1] == '"', root, rules)
            if problem:
                problems.append(f"{path}:{number}: {match[2]}: {problem}")
    return count, problems


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    count, problems = check(root)
    for problem in problems:
        print(problem)
    print(f"layers: {count} files, {len(problems)} includes that break a rule")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
