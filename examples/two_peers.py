#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes: one owns pages, the other reads some of them and notifies the owner.

python examples/two_peers.py
"""

import multiprocessing

import headrace

PAGE, COUNT = 65536, 256


def prefill(address_out, done):
    """Owns a cache of COUNT pages; page i is filled with i."""
    with headrace.Agent("prefill", listen="127.0.0.1:0") as agent:
        # Memory from allocate has the fastest path on one host. register() takes any array in place.
        cache = agent.allocate(PAGE * COUNT, name="kv cache")
        view = memoryview(cache)
        for i in range(COUNT):
            view[i * PAGE : (i + 1) * PAGE] = bytes([i % 251]) * PAGE
        address_out.put(agent.listen_address)
        peer, message = agent.wait_notification(timeout=30)
        print(f"prefill: {peer} says: {message.decode()}")
        done.wait()


def decode(address, done):
    """Reads the pages that it needs, in any order, into the slots that it chooses."""
    wanted = [200, 3, 77, 142]
    with headrace.Agent("decode") as agent:
        mine = bytearray(len(wanted) * PAGE)
        region = agent.register(mine)
        agent.fetch_metadata(address)
        theirs = agent.peer_region("prefill", "kv cache")
        # Prepare once. Each request then picks pages by index.
        local = agent.prepare(headrace.UniformPages(region, 0, 0, PAGE, len(wanted)))
        remote = agent.prepare(headrace.UniformPages(theirs, 0, 0, PAGE, COUNT), peer="prefill")
        request = agent.make_request("read", local, remote, range(len(wanted)), wanted)
        request.post(notification=f"took pages {wanted}".encode(), timeout=30)
        request.wait()
        assert [mine[i * PAGE] for i in range(len(wanted))] == wanted
        print(
            f"decode: {request.bytes} bytes in {request.times.transfer_ns / 1e6:.2f} ms\n{request.explain()}"
        )
        done.set()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    addresses, done = context.Queue(), context.Event()
    owner = context.Process(target=prefill, args=(addresses, done))
    owner.start()
    decode(addresses.get(timeout=60), done)
    owner.join()
    raise SystemExit(owner.exitcode)
