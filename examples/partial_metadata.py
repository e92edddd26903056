#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metadata in steps: connection information first, then each region when it is needed, then only the changes.

python examples/partial_metadata.py
"""

import headrace

with headrace.Agent("owner") as owner, headrace.Agent("reader") as reader:
    layers = [owner.allocate(4096, name=f"layer {i}") for i in range(4)]
    memoryview(layers[2])[:] = b"2" * 4096

    # Metadata is bytes; send it by any channel. First the connection information alone: it lists no region.
    reader.import_metadata(owner.export_metadata(regions=[]))
    assert reader.peer_regions("owner") == []

    # Then one layer, without the connection information.
    reader.import_metadata(owner.export_metadata(regions=[layers[2]], connection_info=False))
    there = reader.peer_region("owner", "layer 2")
    here = reader.allocate(4096)
    reader.read("owner", [here], [there], timeout=30)
    assert bytes(here) == b"2" * 4096
    print("read", there)

    # The full metadata, and then only the changes since a version.
    whole = owner.export_metadata()
    reader.import_metadata(whole)
    version = owner.metadata_version
    owner.allocate(4096, name="layer 4")
    update = owner.export_metadata(since_version=version)
    reader.import_metadata(update)
    print(f"whole: {len(whole)} bytes; the update: {len(update)} bytes")
    assert sorted(region.name for region in reader.peer_regions("owner")) == [f"layer {i}" for i in range(5)]

    # deregister revokes the region at every peer that knows it, and waits until each has released it.
    owner.deregister(layers[2], timeout=30)
    try:
        reader.read("owner", [here], [there], timeout=30)
    except headrace.NotFound as error:
        print("after deregistration:", error)
