#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two agents find each other by name in etcd. Neither has the address of the other.

etcd &
python examples/etcd_agents.py etcd://127.0.0.1:2379/example
"""

import sys
import threading

import headrace

store = sys.argv[1] if len(sys.argv) > 1 else "etcd://127.0.0.1:2379/example"

with headrace.Agent("trainer", store=store) as trainer, headrace.Agent("server", store=store) as server:
    # The server's watch reports every agent that joins, changes or leaves.
    came = threading.Event()
    server.watch_namespace(lambda event, peer: came.set() if (event, peer) == ("joined", "trainer") else None)

    # The trainer publishes its weights under a lease that ends with it. After each change of its
    # registrations the agent publishes again by itself.
    weights = trainer.allocate(1 << 20, name="weights", note=b"uint8, 1048576")
    memoryview(weights)[:] = bytes(range(256)) * 4096
    trainer.publish()
    assert came.wait(30), "etcd did not tell of the trainer"
    print("in the namespace:", server.list_namespace())

    # Found by name, then reached directly: etcd holds metadata, never data.
    server.find("trainer")
    there = server.peer_region("trainer", "weights")
    here = server.allocate(there.length_bytes)
    request = server.read("trainer", [here], [there], timeout=30)
    assert bytes(here) == bytes(range(256)) * 4096
    print(f"read {there.name} ({there.note.decode()}) over {request.backend}")

    trainer.unpublish()
