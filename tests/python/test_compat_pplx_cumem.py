# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.pplx.native.cumem: pplx-garden's GPU memory. Nothing of it is there yet, and it says so."""

import pytest

import headrace
from headrace.compat.pplx.native import cumem


def test_kinds_of_handles():
    assert [kind.name for kind in cumem.CUMemHandleKind] == ["Local", "FileDescriptor", "Fabric"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: cumem.CUMemAllocHandle(4096, "cuda:0"),
            r"CUMemAllocHandle: .* use Agent\.map\(peer, region",
        ),
        (lambda: cumem.CUMemExportHandle(b""), "CUMemExportHandle: no GPU memory is exported"),
        (cumem.CUMemImportHandle, "CUMemImportHandle: "),
        (cumem.CUMemMapping, "CUMemMapping: "),
        (lambda: cumem.CUMulticastHandle(2, 4096), "CUMulticastHandle: .* no multicast addresses of NVLink"),
        (lambda: cumem.CUMulticastExportHandle(b""), "CUMulticastExportHandle: .* no multicast"),
    ],
)
def test_what_is_not_there_says_so_and_what_to_use(make, sentence):
    with pytest.raises(headrace.NotSupported, match=sentence):
        make()
