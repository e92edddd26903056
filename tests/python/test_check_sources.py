# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The source check finds files without a licence line, registries' host names and paths of one machine."""

import subprocess

import pytest

from test_check_layers import load_tool

check_sources = load_tool("check_sources")
LICENCE = f"// {check_sources.LICENCE_LINE}\n"


def check(tmp_path, name, text):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    return check_sources.check_file(tmp_path, name)


def test_a_source_without_the_licence_line_is_found(tmp_path):
    assert "no line" in check(tmp_path, "a.cpp", "int x;\n")[0]
    assert check(tmp_path, "a.cpp", LICENCE + "int x;\n") == []


def test_documents_and_recorded_data_need_no_licence_line(tmp_path):
    assert check(tmp_path, "README.md", "text\n") == []
    assert check(tmp_path, "tests/fuzz/corpus/hello/a.py", "x\n") == []


@pytest.mark.parametrize("host", [".".join(parts) for parts in check_sources.REGISTRY_HOSTS])
def test_the_host_name_of_a_registry_is_found_anywhere_in_a_file(tmp_path, host):
    for text in (f"https://{host}/simple", f"see files.{host} for it", host.upper()):
        assert "names the package registry" in check(tmp_path, "a.md", text)[0]


def test_words_that_only_resemble_a_host_name_are_accepted(tmp_path):
    assert check(tmp_path, "a.md", "my-docker.iostream is no host\n") == []


@pytest.mark.parametrize("path", ["/ro" + "ot/x", "/ho" + "me/me/x", "/wo" + "rk/main", "/Us" + "ers/me"])
def test_a_path_of_one_machine_is_found(tmp_path, path):
    assert "a folder of one machine" in check(tmp_path, "a.md", f"run {path}")[0]


def test_relative_and_system_paths_are_accepted(tmp_path):
    assert check(tmp_path, "a.md", "build/work/x ~/work ../home/a /usr/lib /tmp/x /proc/self\n") == []


def test_binary_files_are_not_checked(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"\0/ro" + b"ot/x")
    assert check_sources.check_file(tmp_path, "a.npz") == []


def test_ignored_files_are_not_read(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("b.cpp\n")
    (tmp_path / "a.cpp").write_text("")
    (tmp_path / "b.cpp").write_text("")
    assert check_sources.repository_files(tmp_path) == [".gitignore", "a.cpp"]


def test_a_link_that_leads_out_of_the_repository_is_found(tmp_path):
    (tmp_path / "inside").symlink_to("a.cpp")
    (tmp_path / "a.cpp").write_text(LICENCE)
    (tmp_path / "absolute").symlink_to("/nowhere/at/all")
    (tmp_path / "upwards").symlink_to("../elsewhere")
    assert check_sources.check_file(tmp_path, "inside") == []
    for name in ("absolute", "upwards"):
        assert "which another machine does not have" in check_sources.check_file(tmp_path, name)[0]


@pytest.fixture
def repository(tmp_path):
    """A repository with two files that lack the licence line."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / "a.cpp").write_text("")
    (root / "src" / "b.cpp").write_text("")
    return root


@pytest.mark.parametrize(
    ("paths", "found", "files"),
    [
        (["a.cpp"], ["a.cpp"], 1),
        (["src/b.cpp"], ["src/b.cpp"], 1),
        (["src"], ["src/b.cpp"], 1),
        (["."], ["a.cpp", "src/b.cpp"], 2),
        (["a.cpp", "src"], ["a.cpp", "src/b.cpp"], 2),
    ],
)
def test_files_and_folders_that_are_named_are_checked(repository, monkeypatch, capsys, paths, found, files):
    monkeypatch.chdir(repository)
    assert check_sources.main(paths) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == found
    assert last == f"sources: {files} files, {files} lines that break a rule"


def test_a_path_that_does_not_exist_or_is_in_no_repository_is_refused_with_the_expected_paths(
    tmp_path, capsys
):
    assert check_sources.main([str(tmp_path / "none.cpp")]) == 2
    assert "none.cpp does not exist: expected a file or a folder of a git repo" in capsys.readouterr().err
    (tmp_path / "alone.cpp").write_text(LICENCE)
    assert check_sources.main([str(tmp_path / "alone.cpp")]) == 2
    assert "alone.cpp is in no git repository" in capsys.readouterr().err
    assert check_sources.main(["--fast"]) == 2
