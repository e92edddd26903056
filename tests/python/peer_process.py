# SPDX-License-Identifier: Apache-2.0
"""An agent in a process of its own, for tests. It reads one JSON object a line and answers with one.

Usage: peer_process.py NAME BACKENDS    BACKENDS: separated by commas

It has two regions, "allocated" (from allocate) and "registered" (a NumPy array), of REGION_BYTES each, filled
from SEED.
"""

import base64
import json
import os
import sys

import numpy as np

import headrace

REGION_BYTES = 1 << 20
SEED = 7


def contents():
    """The bytes of each region at the start."""
    return np.random.default_rng(SEED).integers(0, 256, REGION_BYTES, dtype=np.uint8)


def main(name, backends):
    with headrace.Agent(name, backends=backends.split(","), listen="127.0.0.1:0") as agent:
        arrays = {
            "allocated": agent.allocate(REGION_BYTES, name="allocated").numpy(),
            "registered": np.empty(REGION_BYTES, np.uint8),
        }
        agent.register(arrays["registered"], name="registered", note=b"bytes of a peer")
        for array in arrays.values():
            array[:] = contents()
        print(json.dumps({"address": agent.listen_address}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(answer(agent, arrays, request)), flush=True)


def answer(agent, arrays, request):
    try:
        match request["command"]:
            case "bytes":
                begin, end = request["begin"], request["end"]
                return {"bytes": arrays[request["region"]][begin:end].tolist()}
            case "fill":
                arrays[request["region"]][:] = request["value"]
                return {}
            case "map_file":
                arrays["file"] = np.memmap(request["path"], np.uint8, "r")
                agent.register(arrays["file"], name="file")
                return {}
            case "dump":
                return {"bytes": base64.b64encode(arrays[request["region"]].tobytes()).decode()}
            case "scatter":
                arrays[request["region"]][:] = np.random.default_rng(request["seed"]).integers(
                    0, 256, REGION_BYTES, dtype=np.uint8
                )
                return {}
            case "pid":
                return {"pid": os.getpid()}
            case "metadata":
                return {"metadata": base64.b64encode(agent.export_metadata()).decode()}
            case "load":
                report = agent.import_metadata(base64.b64decode(request["metadata"]))
                return {"peer": report.peer, "restarted": report.restarted}
            case "move":
                return move(agent, **request)
            case "take":
                peer, payload = agent.wait_notification(30)
                return {"peer": peer, "payload": payload.decode()}
            case "notify":
                agent.notify(request["peer"], request["payload"].encode())
                return {}
            case "fetch":
                return {"peer": agent.fetch_metadata(request["address"]).peer}
            case "peers":
                return {
                    "peers": [peer.name for peer in agent.peers()],
                    "lost": {peer.name: peer.detail for peer in agent.peers() if peer.lost},
                }
            case "publish":
                agent.publish()
                return {}
            case "deregister":
                region = next(region for region in agent.regions() if region.name == request["region"])
                agent.deregister(region)
                return {}
    except headrace.Error as error:
        return {"error": error.code, "text": str(error)}
    return {"error": "invalid_argument", "text": f"no command {request['command']}"}


def move(agent, command, op, peer, mine, theirs, here, there, page, notification):
    """Moves pages between our region at the offsets `here` and the peer's region at the offsets `there`, over
    any path."""
    ours = next(region for region in agent.regions() if region.name == mine)
    sides = [
        np.array([(region, offset, page) for offset in offsets], dtype=np.uint64)
        for region, offsets in ((ours.id, here), (agent.peer_region(peer, theirs).id, there))
    ]
    request = agent.make_request(op, agent.prepare(sides[0]), agent.prepare(sides[1], peer), timeout=30)
    request.post(notification.encode())
    request.wait(60)
    return {"backend": request.backend, "explain": request.explain()}


if __name__ == "__main__":
    main(*sys.argv[1:])
