# SPDX-License-Identifier: Apache-2.0
"""Distributes the tests of tests/python/test_gpu.py over several processes that run at the same time and
should end at the same time.

Most tests move pages between two processes, and all tests of one place (the GPUs and the kind of memory)
share these processes, because their start takes longer than any one test. So the tests of a place stay
together as far as the shares stay even. Each test is in exactly one share. The figures in this file affect
only the total time.
"""

from __future__ import annotations

import math
import re

# Seconds of the long tests on two H200; "name[parameters]" is used before "name".
SECONDS = {
    "test_an_initiator_that_is_killed_leaves_its_owner_whole": 21,
    "test_pages_of_every_size_and_place_go_over_tcp[gpu_and_host]": 17,
    "test_pages_of_every_size_and_place_go_over_tcp[host_and_gpu]": 16,
    "test_a_peer_killed_while_its_gpu_sends_and_receives_over_tcp_is_lost_and_the_next_is_served": 9,
    "test_a_notification_of_a_write_to_registered_host_memory_comes_when_the_bytes_are_there": 6,
    "test_a_gpu_reads_and_writes_what_a_peer_allocated_on_its_host": 6,
    "test_a_gpu_reads_and_writes_what_a_peer_merely_registered_on_its_host": 5,
    "test_host_memory_of_ours_goes_to_and_from_a_peers_gpu": 5,
    "test_a_captured_request_tells_that_its_peer_has_died_and_its_replays_harm_nobody": 4,
    "test_pages_move_both_ways_between_pid_namespaces": 6,
    "test_pages_of_several_gpus_of_a_peer_move_in_one_post": 4,
    "test_a_tensor_of_a_gpu_that_is_not_the_current_one_is_registered": 4,
    "test_pages_change_their_layout_on_the_way": 0.1,
    "test_pages_change_their_layout_between_a_gpu_and_a_peers_host_memory": 0.1,
}
WITH_OWN_PROCESSES, WITH_SHARED_PROCESSES = 4.0, 0.8  # seconds of every other test
START = 4.0  # seconds to start the two processes of a place
PLACE = re.compile(r"\[((?:two_gpus|one_gpu)-(?:plain|expandable))\b")


def place_of(test: str) -> str | None:
    """Returns the place whose processes a test shares, from the test's id; None: the test starts its own
    processes."""
    found = PLACE.search(test)
    return found[1] if found else None


def seconds_of(test: str) -> float:
    name = test.rpartition("::")[2]
    default = WITH_OWN_PROCESSES if place_of(test) is None else WITH_SHARED_PROCESSES
    return SECONDS.get(name, SECONDS.get(name.partition("[")[0], default))


def shares(tests: list[str], processes: int) -> list[list[str]]:
    """Distributes the tests (their ids) over at most `processes` shares. Each share keeps the order of the
    tests."""
    fair = sum(map(seconds_of, tests)) / max(1, processes)
    pieces: list[tuple[float, list[str]]] = []
    places: dict[str, list[str]] = {}
    for test in tests:
        place = place_of(test)
        if place is None:
            pieces.append((seconds_of(test), [test]))
        else:
            places.setdefault(place, []).append(test)
    for together in places.values():
        count = min(len(together), max(1, round(sum(map(seconds_of, together)) / fair)))
        length = math.ceil(len(together) / count)
        parts = [together[begin : begin + length] for begin in range(0, len(together), length)]
        pieces += [(START + sum(map(seconds_of, part)), part) for part in parts]
    dealt: list[list[str]] = [[] for _ in range(max(1, processes))]
    loads = [0.0] * len(dealt)
    for seconds, part in sorted(pieces, key=lambda piece: -piece[0]):
        least = loads.index(min(loads))
        dealt[least] += part
        loads[least] += seconds
    order = {test: number for number, test in enumerate(tests)}
    return [sorted(share, key=order.__getitem__) for share in dealt if share]
