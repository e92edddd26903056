# SPDX-License-Identifier: Apache-2.0
"""How NIXL's descriptors name files and objects."""

import pytest

from headrace.compat.nixl._storage import asked_about, path_in, registered


@pytest.mark.parametrize("said, path", [
    ("ro:/a/b", "/a/b"), ("rw,create:b:c", "b:c"), ("rw,direct,sync,noatime:/x", "/x"),
    ("", ""), ("/a/b", ""), ("wo:/a", ""), ("rw,nosuch:/a", ""), ("ro:", ""), ("ro", ""), (":/a", ""),
])  # fmt: skip
def test_a_path_follows_the_ways_in_which_it_is_opened(said, path):
    assert path_in(said) == path


def test_files_are_registered_by_path_or_by_open_descriptor():
    by_path, by_descriptor = registered("file", 0, 7, b"ro:/a"), registered("file", 0, 7, b"whatever")
    assert (by_path.path, by_path.file_descriptor) == ("/a", -1)
    assert (by_descriptor.path, by_descriptor.file_descriptor) == ("", 7)


def test_objects_are_named_by_key_else_by_number():
    assert [registered("object", 0, 7, said).path for said in (b"key", b"")] == ["key", "7"]
    assert [asked_about("object", 7, said).path for said in (b"key", b"")] == ["key", "7"]


def test_files_are_asked_about_by_path():
    assert [asked_about("file", 0, said).path for said in (b"/a", b"ro:/a")] == ["/a", "/a"]
