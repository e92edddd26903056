#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metadata in parts: tell a peer how to reach you, then of each region as it is needed, then of what has
changed since.

python examples/partial_metadata.py
"""

import headrace

with headrace.Agent("owner") as owner, headrace.Agent("reader") as reader:
    layers = [owner.allocate(4096, name=f"layer {i}") for i in range(4)]
    memoryview(layers[2])[:] = b"2" * 4096

    # Metadata is bytes, sent by any means you have. First the connection information alone: no region is
    # shown.
    reader.import_metadata(owner.export_metadata(regions=[]))
    assert reader.peer_regions("owner") == []

    # Then one layer. It need not say again how to reach us.
    reader.import_metadata(owner.export_metadata(regions=[layers[2]], connection_info=False))
    there = reader.peer_region("owner", "layer 2")
    here = reader.allocate(4096)
    reader.read("owner", [here], [there], timeout=30)
    assert bytes(here) == b"2" * 4096
    print("read", there)

    # All of it, and from then on only what changed after a version.
    whole = owner.export_metadata()
    reader.import_metadata(whole)
    version = owner.metadata_version
    owner.allocate(4096, name="layer 4")
    update = owner.export_metadata(since_version=version)
    reader.import_metadata(update)
    print(f"whole: {len(whole)} bytes; the update: {len(update)} bytes")
    assert sorted(region.name for region in reader.peer_regions("owner")) == [f"layer {i}" for i in range(5)]

    # Deregistering tells every peer that knows the region, and waits until each has let go.
    owner.deregister(layers[2], timeout=30)
    try:
        reader.read("owner", [here], [there], timeout=30)
    except headrace.NotFound as error:
        print("after deregistration:", error)
