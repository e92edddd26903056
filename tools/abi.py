#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the C headers with the description of their binary interface in tests/abi, and writes it.

tools/abi.py           prints each difference; the exit code is 1 if there is one
tools/abi.py --write   writes the descriptions, if every change is an append
tools/abi.py --break   writes them in any case: for a version that breaks what was built against the former

A description has a line for each struct field with its offset, enumerator, function and constant of a
header. Appends are: a new field at the end of a struct that begins with struct_size, or with the head of a
table of kernels, which has it; a new enumerator, a new function, a new constant, a new header. A reserved
field may get a name. Everything else breaks plugins and programs that were built before.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("tests/abi")
HEADERS = ["include/headrace/c/**/*.h", "include/headrace/plugin/**/*.h"]
COMPILER = "clang-16"
BEGINS_OF_GROWING = ("0 struct_size: size_t", "0 family: headrace_kernel_family_v1")

# What one header says: sections by title ("struct headrace_post_v1"), each a list of lines in order.
Sections = dict[str, list[str]]


def headers(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for pattern in HEADERS for path in root.glob(pattern))


def describe(root: Path, header: Path) -> Sections:
    """Reads a header through the compiler. Declarations of the headers that it includes are not its own."""
    own = list(declarations(root, header))
    sections: Sections = {"constants": constants(root, header)}
    structs = [(node["name"], names_of_fields(node)) for node in own if is_struct(node)]
    names = [name for node in own if node["kind"] == "EnumDecl" for name in names_of_values(node)]
    layouts, values = layout(root, header, structs, names)
    functions = []
    for node in own:
        if is_struct(node):
            types = [field["type"]["qualType"] for field in node["inner"] if field["kind"] == "FieldDecl"]
            size, offsets = layouts[node["name"]]
            fields = zip(names_of_fields(node), types, offsets)
            lines = [f"{offset} {name}: {kind}" for name, kind, offset in fields]
            sections[f"struct {node['name']}"] = [*lines, f"size {size}"]
        elif node["kind"] == "EnumDecl":
            sections[f"enum {node['name']}"] = [f"{name} = {values[name]}" for name in names_of_values(node)]
        elif node["kind"] == "FunctionDecl":
            functions.append(f"{node['name']}: {node['type']['qualType']}")
        elif node["kind"] == "TypedefDecl" and "(*)" in node["type"]["qualType"]:
            functions.append(f"type {node['name']}: {node['type']['qualType']}")
    sections["functions"] = functions
    return {title: lines for title, lines in sections.items() if lines}


def declarations(root: Path, header: Path) -> Iterator[dict[str, Any]]:
    command = [COMPILER, "-x", "c", "-std=c11", "-fsyntax-only", "-Xclang", "-ast-dump=json", "-Iinclude"]
    done = subprocess.run([*command, str(header)], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{header}: {done.stderr}")
    current = ""  # the dump names a file where it differs from the one before
    for node in json.loads(done.stdout)["inner"]:
        for place in (node.get("loc", {}), node.get("range", {}).get("begin", {})):
            place = place.get("expansionLoc", place)
            if "file" in place:
                current = place["file"]
                break
        if Path(current) == header and "includedFrom" not in node.get("loc", {}):
            yield node


def is_struct(node: dict[str, Any]) -> bool:
    return node["kind"] == "RecordDecl" and bool(node.get("completeDefinition")) and "name" in node


def names_of_fields(node: dict[str, Any]) -> list[str]:
    return [field["name"] for field in node["inner"] if field["kind"] == "FieldDecl"]


def names_of_values(node: dict[str, Any]) -> list[str]:
    return [inner["name"] for inner in node["inner"] if inner["kind"] == "EnumConstantDecl"]


def constants(root: Path, header: Path) -> list[str]:
    """Returns the macros of the header itself that stand for a number or a text."""
    found = []
    for name, value in re.findall(
        r"^#define (HEADRACE_\w+) +(.+?)(?: +/\*.*)?$", (root / header).read_text(), re.M
    ):
        if re.fullmatch(r'([0-9"(]|U?INT\d+_MAX).*', value) and not value.endswith("\\"):
            found.append(f"{name} = {value}")
    return found


def layout(
    root: Path, header: Path, structs: list[tuple[str, list[str]]], names: list[str]
) -> tuple[dict[str, tuple[int, list[int]]], dict[str, int]]:
    """Returns size and offsets of structs and the values of enumerators, as the compiler has them here."""
    lines = [f'#include "{root / header}"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, fields in structs:
        offsets = "".join(f", (long)offsetof(struct {name}, {field})" for field in fields)
        form = " %ld" * (len(fields) + 1)
        lines.append(f'  printf("{name}{form}\\n", (long)sizeof(struct {name}){offsets});')
    lines += [f'  printf("{name} %ld\\n", (long){name});' for name in names]
    lines += ["  return 0;", "}"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "layout.c"), Path(folder, "layout")
        source.write_text("\n".join(lines) + "\n")
        subprocess.run([COMPILER, "-I", str(root / "include"), str(source), "-o", str(program)], check=True)
        out = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    numbers = {name: [int(value) for value in values] for name, *values in map(str.split, out.splitlines())}
    return (
        {name: (numbers[name][0], numbers[name][1:]) for name, _ in structs},
        {name: numbers[name][0] for name in names},
    )


def as_text(header: Path, sections: Sections) -> str:
    lines = [f"# {header}: written by tools/abi.py"]
    for title, body in sections.items():
        lines += ["", f"[{title}]", *body]
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Sections:
    sections: Sections = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("["):
            title = line[1:-1]
            sections[title] = []
        elif line and not line.startswith("#"):
            sections[title].append(line)
    return sections


def breaks(before: Sections, after: Sections) -> list[str]:
    """Returns what a program that was built with `before` would find changed."""
    found = []
    for title, old in before.items():
        new = after.get(title)
        if new is None:
            found.append(f"{title} is gone")
        elif title.startswith("struct "):
            found += [f"{title}: {problem}" for problem in struct_breaks(old, new)]
        else:
            found += [f"{title}: {line} is gone or another" for line in old if not keeps(line, new)]
    return found


def keeps(line: str, new: list[str]) -> bool:
    """Returns whether the line is still there. A minor version grows with each append, and so does the
    version of a family of kernels."""
    name = line.split(" = ")[0]
    grows = name.endswith(("_ABI_MINOR", "_FAMILY_VERSION"))
    return line in new or (grows and any(other.startswith(f"{name} = ") for other in new))


def keeps_field(line: str, new: list[str]) -> bool:
    """Returns whether the field is still there. A reserved one may get its name: callers have set it to 0."""
    if new == [line] or not new:
        return bool(new)
    (offset, name, kind), (new_offset, _, new_kind) = (
        re.split(" |: ", each, maxsplit=2) for each in (line, new[0])
    )
    return name.startswith("reserved") and (offset, kind) == (new_offset, new_kind)


def struct_breaks(old: list[str], new: list[str]) -> list[str]:
    fields, size = old[:-1], old[-1]
    changed = next((line for i, line in enumerate(fields) if not keeps_field(line, new[i : i + 1])), None)
    if changed is not None:
        return [f"{changed} is gone, has moved or is another"]
    if new == old:
        return []
    if not fields or fields[0] not in BEGINS_OF_GROWING:
        return [f"it is frozen, since it has no struct_size, and is another now ({size})"]
    return []


def check(root: Path) -> tuple[list[str], list[str], dict[Path, str]]:
    """Returns what breaks, what differs in any way, and the texts of now."""
    broken, differs, texts = [], [], {}
    for header in headers(root):
        file = root / FOLDER / f"{header.relative_to('include/headrace')}.txt"
        sections = describe(root, header)
        texts[file] = as_text(header, sections)
        before = file.read_text() if file.exists() else ""
        if before == texts[file]:
            continue
        differs.append(f"{header}: {file.relative_to(root)} is not what the header says")
        broken += [f"{header}: {problem}" for problem in breaks(from_text(before), sections)]
    known = set(texts)
    for file in sorted((root / FOLDER).glob("**/*.txt")):
        if file not in known:
            broken.append(f"{file.relative_to(root)}: its header is gone")
    return broken, differs, texts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--write", action="store_true", help="write the descriptions, if all changes are appends"
    )
    group.add_argument("--break", dest="breaking", action="store_true", help="write them in any case")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to look at")
    options = parser.parse_args(arguments)
    broken, differs, texts = check(options.root)
    if options.breaking or (options.write and not broken):
        for file in (options.root / FOLDER).glob("**/*.txt"):
            file.unlink()
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return 0
    for problem in broken:
        print(f"{problem}: what was built before breaks. Append instead, or use --break for a new version")
    for problem in differs if not broken else []:
        print(f"{problem}: run tools/abi.py --write")
    print(f"abi: {len(texts)} headers, {len(broken or differs)} differences")
    return 1 if broken or differs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
