# SPDX-License-Identifier: Apache-2.0
"""Small pages carried by the courier, a kernel that stays on the GPU.

With HEADRACE_TEST_WITHOUT_GPU=1 host memory and shm stand in, which knows no courier: to try these tests
themselves.
"""

import random
import time

import pytest

from conftest import unique, until
from gpus import torch_on_gpus
from test_gpu import BACKEND, GPUS, MIB, PLACES, STAND_IN, GpuProcess, fill, introduce, runtime, start  # noqa: F401  fixtures

pytestmark = torch_on_gpus(GPUS)
COURIER = {"HEADRACE_CUDA_IPC_COURIER": "on"}
SIZE = MIB + 13
SLOT = 65536
COUNT = 100


@pytest.fixture(scope="module", params=PLACES)
def pair(request, runtime):
    """Two processes that know each other and use the courier."""
    here, there, segments = request.param
    processes = [
        GpuProcess(unique(name), device, segments, runtime, environment=COURIER)
        for name, device in (("here", here), ("there", there))
    ]
    introduce(*processes)
    yield processes
    for process in processes:
        process.close()


def small_plans(seed, count):
    """Lists of few pages, of any length and place, a large one now and then."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choice(["uniform", "rows"])
        pages = rng.choice([1, 1, 1, 2, 3, 7, 10, 11])
        most = 300_000 if number % 20 == 7 else 65536
        length = rng.choice([1, 3, 16, 500, 512, 4096, 4097, 8192, 20_000, 65_536, 300_000])
        yield [kind, SIZE, max(1, min(length, most // pages)), pages, seed * 1000 + number]


@pytest.mark.parametrize("op", ["read", "write"])
def test_small_pages_of_any_length_and_place_arrive_among_large_ones(pair, op):
    here, there = pair
    target, theirs, ours = (here, 1, 2) if op == "read" else (there, 2, 1)
    _, region = fill(here, there, SIZE)
    plans = list(small_plans(3, 300))
    here.ask("storm", op=op, peer=there.name, mine="pages", theirs=region, plans=plans)
    assert target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=plans) == ""


@pytest.mark.parametrize("op", ["read", "write"])
def test_many_small_requests_in_flight_are_more_than_its_ring_and_all_arrive(pair, op):
    here, there = pair
    target, theirs, ours = (here, 1, 2) if op == "read" else (there, 2, 1)
    for number, page in enumerate((4096, 777)):
        plan = ["uniform" if page == 4096 else "rows", SIZE, page, 250, 40 + number]
        _, region = fill(here, there, SIZE)
        assert (
            here.ask("parts", op=op, peer=there.name, mine="pages", theirs=region, plan=plan, requests=250)
            == 250
        )
        assert target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=[plan]) == ""


def test_explain_says_who_carries(pair):
    here, there = pair
    _, region = fill(here, there, SIZE)
    plan = ["uniform", SIZE, 4096, 1, 1]
    done = here.ask("move", op="read", peer=there.name, mine="pages", theirs=region, plan=plan)
    assert done["backend"] == BACKEND
    assert STAND_IN or "by the courier" in done["explain"]


def test_whoever_synchronises_with_the_gpu_waits_for_the_courier_only_shortly(pair):
    here, there = pair
    _, region = fill(here, there, SIZE)
    plan = ["uniform", SIZE, 4096, 3, 5]
    here.ask("make", handle="one", op="read", peer=there.name, mine="pages", theirs=region, plan=plan)
    here.ask("post", handle="one")
    # It waits for the whole GPU each time, also within the time that the courier stays.
    seconds = here.ask("post_and_synchronise", handle="one", times=50)
    print(f"{max(seconds) * 1e6:.0f} us at most, median {sorted(seconds)[25] * 1e6:.0f} us")
    assert sorted(seconds)[25] < 0.1 and max(seconds) < 5
    here.ask("drop", handle="one")
    assert here.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""


def test_the_gpu_is_let_go_of_while_posts_keep_coming(pair):
    here, there = pair
    _, region = fill(here, there, SIZE)
    plan = ["uniform", SIZE, 4096, 1, 6]
    here.ask("make", handle="one", op="read", peer=there.name, mine="pages", theirs=region, plan=plan)
    answer = here.ask("synchronise_beside_posts", handle="one", times=20)
    print(f"{answer['posts']} posts; {max(answer['seconds']) * 1e3:.1f} ms at most")
    assert answer["posts"] > 20 and max(answer["seconds"]) < 5
    here.ask("drop", handle="one")


def test_the_courier_comes_back_after_every_pause(pair):
    here, there = pair
    _, region = fill(here, there, SIZE)
    for number in range(20):
        plan = ["rows", SIZE, 5000, 2, 70 + number]
        fill(here, there, SIZE)
        here.ask("move", op="read", peer=there.name, mine="pages", theirs=region, plan=plan)
        time.sleep(0.002 * (number % 3))
        assert here.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""


@pytest.mark.parametrize("place", [PLACES[0], PLACES[2]])
def test_a_peer_killed_in_the_middle_of_100_small_reads(start, place):
    device, other, segments = place
    here = start(unique("here"), device, segments, environment=COURIER)
    here.ask("fill", key="slots", bytes=COUNT * SLOT, seed=1)
    name = unique("mortal")
    for after in (0, 1, 50):
        mortal = start(name, other, segments, environment=COURIER)
        region = mortal.ask("fill", key="pages", bytes=SLOT, seed=2)
        here.ask("load", metadata=mortal.ask("metadata"))
        mortal.ask("load", metadata=here.ask("metadata"))
        result = here.ask(
            "kill_in_the_middle",
            peer=name,
            pid=mortal.pid,
            mine="slots",
            theirs=region,
            bytes=SLOT,
            count=COUNT,
            after=after,
            page=8192,
            timeout=20,
            source_seed=2,
        )
        mortal.process.wait(20)
        assert set(result["codes"]) <= {"done", "peer_lost"}, result["codes"]
        assert result["codes"][:after] == ["done"] * after
        assert result["wrong"] == [] and result["seconds"] < 25
        assert all(code == "peer_lost" and seconds < 1 for code, seconds in result["later"]), result["later"]
        until(lambda: here.ask("peers")[name]["lost"])
