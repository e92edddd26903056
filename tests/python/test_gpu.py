# SPDX-License-Identifier: Apache-2.0
"""Pages between the GPU memories of different processes.

With HEADRACE_TEST_WITHOUT_GPU=1 what does not depend on a GPU runs over host memory and shm: to try these
tests themselves.
"""

import json
import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import unique, until
from gpus import count_gpus, torch_on_gpus, two_of
from pid_namespaces import NUMBER, own_pid_namespace

HERE = Path(__file__).resolve().parent
STAND_IN = os.environ.get("HEADRACE_TEST_WITHOUT_GPU") == "1"
BACKEND = "shm" if STAND_IN else "cuda_ipc"
MIB = 1 << 20
ANSWER_SECONDS = 90
GPUS = 2 if STAND_IN else count_gpus()
pytestmark = torch_on_gpus(GPUS)
two_gpus = two_of(GPUS)
gpus_only = pytest.mark.skipif(STAND_IN, reason="this is about GPUs, and host memory stands in for them")


# Processes


class Refused(Exception):
    """A headrace.Error over there."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class GpuProcess:
    """gpu_process.py: an agent with memory of one GPU, told by lines what to do."""

    def __init__(self, name, device, segments, runtime, backends=BACKEND, environment=None, under=()):
        """under: the command that starts it, if it is not to run as the tests do."""
        self.name, self.device = name, device
        setting = "expandable_segments:True" if segments == "expandable" else ""
        environment = {
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": setting,
            "PYTORCH_ALLOC_CONF": setting,
            "HEADRACE_RUNTIME_DIR": str(runtime),
            **(environment or {}),
        }
        command = [
            *under,
            sys.executable,
            str(HERE / "gpu_process.py"),
            name,
            str(-1 if STAND_IN else device),
            backends,
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def begin(self, what, **arguments):
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def end(self, seconds=ANSWER_SECONDS):
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.kill()
            pytest.fail(f"{self.name} gave no answer in {seconds} s")
        line = self.process.stdout.readline()
        assert line, str(subprocess.CalledProcessError(self.process.wait(), self.name))
        answer = json.loads(line)
        if answer.get("error") == "exception":
            pytest.fail(f"{self.name}: {answer['text']}")
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["value"]

    def ask(self, what, **arguments):
        self.begin(what, **arguments)
        return self.end()

    @property
    def pid(self):
        return self.process.pid

    @property
    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.alive:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()


def introduce(one, other):
    """Each gets all of the other's metadata, as it is now."""
    one.begin("metadata")
    other.begin("metadata")
    ours, theirs = one.end(), other.end()
    one.begin("load", metadata=theirs)
    other.begin("load", metadata=ours)
    one.end(), other.end()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    folder.chmod(0o700)
    return folder


@pytest.fixture
def start(runtime):
    """Call it with a name, a GPU and the kind of torch's segments to start a process of this test alone."""
    started = []

    def start(name, device=0, segments="plain", backends=BACKEND, environment=None, under=()):
        started.append(GpuProcess(name, device, segments, runtime, backends, environment, under))
        return started[-1]

    yield start
    for process in started:
        process.close()


# Where initiator and target are, and how torch gets their memory.
PLACES = [
    pytest.param((0, 1, "plain"), marks=two_gpus, id="two_gpus-plain"),
    pytest.param((0, 1, "expandable"), marks=two_gpus, id="two_gpus-expandable"),
    pytest.param((0, 0, "plain"), marks=pytest.mark.gpu1, id="one_gpu-plain"),
    pytest.param((0, 0, "expandable"), marks=pytest.mark.gpu1, id="one_gpu-expandable"),
]
_pairs = {}


@pytest.fixture(scope="module")
def pairs(runtime):
    """Two processes for each place, started when first asked for: torch takes seconds to start."""
    yield _pairs
    for pair in _pairs.values():
        for process in pair:
            process.close()
    _pairs.clear()


@pytest.fixture(params=PLACES)
def pair(request, pairs, runtime):
    """Two processes that know each other."""
    place = request.param
    if place in pairs and not all(process.alive for process in pairs[place]):
        for process in pairs.pop(place):
            process.close()
    if place not in pairs:
        here, there, segments = place
        pairs[place] = [
            GpuProcess(unique("here"), here, segments, runtime),
            GpuProcess(unique("there"), there, segments, runtime),
        ]
        introduce(*pairs[place])
    return pairs[place]


def fill(one, other, bytes_, seeds=(1, 2), key="pages"):
    """A buffer of that size on both sides, as their seeds say; the ids of their regions."""
    one.begin("fill", key=key, bytes=bytes_, seed=seeds[0])
    other.begin("fill", key=key, bytes=bytes_, seed=seeds[1])
    ids = one.end(), other.end()
    introduce(one, other)
    return ids


# Pages

BUFFER = 8 * MIB if STAND_IN else 320 * MIB
SIZES = [
    (512, 1),
    (512, 20_000),
    (4096, 1),
    (4096, 10_007),
    (16384, 16_384),
    (65536, 1000),
    (MIB, 200),
    (4 * MIB, 70),
    (16 * MIB, 1),
    (16 * MIB, 16),
]
SIZES = [(page, min(count, BUFFER // page)) for page, count in SIZES if page <= BUFFER]


@pytest.mark.parametrize("op", ["read", "write"])
def test_pages_of_every_size_arrive_where_they_belong(pair, op):
    here, there = pair
    source, target = (there, here) if op == "read" else (here, there)
    for number, (page, count) in enumerate(SIZES):
        plan = ["uniform", BUFFER, page, count, 100 + number]
        _, region = fill(here, there, BUFFER)
        done = here.ask("move", op=op, peer=there.name, mine="pages", theirs=region, plan=plan)
        assert done["backend"] == BACKEND
        theirs, ours = (1, 2) if target is here else (2, 1)
        assert target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=[plan]) == "", (
            f"{count} pages of {page} bytes"
        )
        assert source.ask("check", key="pages", target_seed=ours, source_seed=theirs, plans=[]) == "", (
            "the source was changed"
        )


@pytest.mark.parametrize("op", ["read", "write"])
def test_pages_of_odd_lengths_at_odd_places_arrive_where_they_belong(pair, op):
    here, there = pair
    target, theirs, ours = (here, 1, 2) if op == "read" else (there, 2, 1)
    size = BUFFER // 4 + 13
    for number, (page, count) in enumerate(
        [(1, 1), (7, 1000), (513, 20_000), (3001, 9999), (100_003, 200), (1_000_003, 11), (size // 2, 1)]
    ):
        count = min(count, size // page)
        plan = ["rows", size, page, count, 200 + number]
        _, region = fill(here, there, size, key="odd")
        here.ask("move", op=op, peer=there.name, mine="odd", theirs=region, plan=plan, indexed=False)
        assert target.ask("check", key="odd", target_seed=theirs, source_seed=ours, plans=[plan]) == "", (
            f"{count} pages of up to {page} bytes"
        )


# Layouts that change on the way: all agree on (block, K or V, token, head, element).

KV, TOKENS, HEADS, DIM = 2, 16, 8, 128


def nhd(blocks, heads, cut=None):
    """[2, blocks, tokens, heads, dim], heads `cut` of it."""
    return {
        "shape": [KV, blocks, TOKENS, heads, DIM],
        "cut": [[None], [None], [None], cut or [None], [None]],
        "order": [1, 0, 2, 3, 4],
    }


def hnd(blocks, heads, cut=None):
    """[2, blocks, heads, tokens, dim]"""
    return {
        "shape": [KV, blocks, heads, TOKENS, DIM],
        "cut": [[None], [None], cut or [None], [None], [None]],
        "order": [1, 0, 3, 2, 4],
    }


BLOCKS = 40 if STAND_IN else 900
LAYOUTS = {
    "NHD to HND": (nhd(BLOCKS, HEADS), hnd(BLOCKS + 5, HEADS)),
    "HND to NHD": (hnd(BLOCKS, HEADS), nhd(BLOCKS + 5, HEADS)),
    "TP 1 from 2": (nhd(BLOCKS, HEADS, [4, 8]), nhd(BLOCKS + 5, 4)),
    "TP 2 from 1": (nhd(BLOCKS, 4), nhd(BLOCKS + 5, HEADS, [0, 4])),
    "TP 1 from 4": (hnd(BLOCKS, HEADS, [2, 4]), nhd(BLOCKS + 5, 2)),
    "TP 4 from 2": (nhd(BLOCKS, 2), hnd(BLOCKS + 5, 4, [1, 3])),
    "odd extents": (
        {"shape": [BLOCKS, 5, 11, 37], "cut": [[None], [1, 4], [2, 9], [3, 36]], "order": [0, 1, 2, 3]},
        {"shape": [BLOCKS + 5, 9, 3, 41], "cut": [[None], [1, 8], [None], [8, 41]], "order": [0, 2, 1, 3]},
    ),
    "elements apart": (
        {"shape": [BLOCKS, 3, 5, 8], "cut": [[None]] * 4, "order": [0, 1, 2, 3]},
        {"shape": [BLOCKS + 5, 8, 5, 3], "cut": [[None]] * 4, "order": [0, 3, 2, 1]},
    ),
}


def bytes_of(layout):
    size = 2
    for extent in layout["shape"]:
        size *= extent
    return size


def chosen_blocks(seed, count=BLOCKS - 3):
    rng = random.Random(seed)
    return rng.sample(range(BLOCKS), count), rng.sample(range(BLOCKS + 5), count)


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_change_their_layout_on_the_way(pair, layout, op):
    here, there = pair
    ours, theirs = LAYOUTS[layout]
    here.begin("fill", key=f"{layout} here", bytes=bytes_of(ours), seed=5)
    there.begin("fill", key=f"{layout} there", bytes=bytes_of(theirs), seed=6)
    here.end(), there.end()
    introduce(here, there)
    told = there.ask("tell_view", key=f"{layout} there", layout=theirs)
    mine, others = chosen_blocks(layout)
    done = here.ask(
        "move_views",
        op=op,
        peer=there.name,
        mine=f"{layout} here",
        layout=ours,
        theirs=told,
        here=mine,
        there=others,
    )
    assert done["backend"] == BACKEND
    moved = [[mine, others]] if op == "read" else []
    wrong = here.ask(
        "check_views",
        key=f"{layout} here",
        layout=ours,
        target_seed=5,
        source_bytes=bytes_of(theirs),
        source_layout=theirs,
        source_seed=6,
        moved=moved,
    )
    assert wrong == ""
    moved = [] if op == "read" else [[others, mine]]
    wrong = there.ask(
        "check_views",
        key=f"{layout} there",
        layout=theirs,
        target_seed=6,
        source_bytes=bytes_of(ours),
        source_layout=ours,
        source_seed=5,
        moved=moved,
    )
    assert wrong == ""


@pytest.mark.parametrize("op", ["read", "write"])
def test_pages_change_their_layout_inside_one_agent(pair, op):
    here, _ = pair
    for layout, (ours, theirs) in LAYOUTS.items():
        here.ask("fill", key=f"{layout} here", bytes=bytes_of(ours), seed=5)
        here.ask("fill", key=f"{layout} far", bytes=bytes_of(theirs), seed=6)
        told = here.ask("tell_view", key=f"{layout} far", layout=theirs)
        mine, others = chosen_blocks(layout)
        here.ask(
            "move_views",
            op=op,
            peer=here.name,
            mine=f"{layout} here",
            layout=ours,
            theirs=told,
            here=mine,
            there=others,
        )
        moved = [[mine, others]] if op == "read" else []
        wrong = here.ask(
            "check_views",
            key=f"{layout} here",
            layout=ours,
            target_seed=5,
            source_bytes=bytes_of(theirs),
            source_layout=theirs,
            source_seed=6,
            moved=moved,
        )
        assert wrong == "", layout
        moved = [] if op == "read" else [[others, mine]]
        wrong = here.ask(
            "check_views",
            key=f"{layout} far",
            layout=theirs,
            target_seed=6,
            source_bytes=bytes_of(ours),
            source_layout=ours,
            source_seed=5,
            moved=moved,
        )
        assert wrong == "", layout


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("memory", ["fill_host", "fill_allocated"])
def test_pages_change_their_layout_between_a_gpu_and_a_peers_host_memory(pair, memory, op):
    here, there = pair
    ours, theirs = LAYOUTS["TP 1 from 4"]
    here.ask("fill", key="device", bytes=bytes_of(ours), seed=5)
    key = unique(memory)
    there.ask(memory, key=key, bytes=bytes_of(theirs), seed=6)
    introduce(here, there)
    told = there.ask("tell_view", key=key, layout=theirs)
    mine, others = chosen_blocks(memory)
    here.ask(
        "move_views", op=op, peer=there.name, mine="device", layout=ours, theirs=told, here=mine, there=others
    )
    if op == "read":
        wrong = here.ask(
            "check_views",
            key="device",
            layout=ours,
            target_seed=5,
            source_bytes=bytes_of(theirs),
            source_layout=theirs,
            source_seed=6,
            moved=[[mine, others]],
        )
    else:
        wrong = there.ask(
            "check_views",
            key=key,
            layout=theirs,
            target_seed=6,
            source_bytes=bytes_of(ours),
            source_layout=ours,
            source_seed=5,
            moved=[[others, mine]],
        )
    assert wrong == ""


@gpus_only
def test_replays_of_a_graph_change_the_layout_of_other_pages_each_time(pair):
    here, there = pair
    for layout, (ours, theirs) in LAYOUTS.items():
        here.begin("fill", key=f"{layout} here", bytes=bytes_of(ours), seed=5)
        there.begin("fill", key=f"{layout} there", bytes=bytes_of(theirs), seed=6)
        here.end(), there.end()
        introduce(here, there)
        told = there.ask("tell_view", key=f"{layout} there", layout=theirs)
        turns = [chosen_blocks(f"{layout} {turn}", 100) for turn in range(4)]
        assert (
            here.ask(
                "replay_views", peer=there.name, mine=f"{layout} here", layout=ours, theirs=told, turns=turns
            )
            == 3
        )
        wrong = here.ask(
            "check_views",
            key=f"{layout} here",
            layout=ours,
            target_seed=5,
            source_bytes=bytes_of(theirs),
            source_layout=theirs,
            source_seed=6,
            moved=turns,
        )
        assert wrong == "", layout


def test_a_uniform_list_and_a_table_of_rows_are_the_same_pages(pair):
    here, there = pair
    plan = ["uniform", BUFFER, 4096, 1000, 7]
    for indexed in (True, False):
        _, region = fill(here, there, BUFFER)
        here.ask("move", op="read", peer=there.name, mine="pages", theirs=region, plan=plan, indexed=indexed)
        assert here.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""


def test_blocks_of_a_kv_cache_move_as_vllm_lays_it_out(pair):
    here, there = pair
    blocks = 64 if STAND_IN else 1024
    here.begin("fill_cache", key="cache", blocks=blocks, seed=3)
    there.begin("fill_cache", key="cache", blocks=blocks, seed=4)
    _, region = here.end(), there.end()
    introduce(here, there)
    ours, others = [5, 0, blocks - 1, 17, 18, 19, 40], [9, 3, 2, 44, 45, 46, blocks - 1]
    assert (
        here.ask(
            "move_blocks",
            op="read",
            peer=there.name,
            mine="cache",
            theirs=region,
            blocks=blocks,
            ours=ours,
            others=others,
        )
        == BACKEND
    )
    assert (
        here.ask("check_blocks", key="cache", target_seed=3, source_seed=4, sources=others, targets=ours)
        == ""
    )
    here.ask("deregister", key="cache"), there.ask("deregister", key="cache")


def counted_writes_wake_a_kernel(here, there):
    key, page, threads, each = unique("counted"), 4096 + 16, 4, 250
    _, theirs = fill(here, there, page * threads * each, seeds=(7, 8), key=key)
    assert not there.ask("spin_on_counter", key=key, immediate=11, at_least=threads * each, seed=7)
    here.ask(
        "write_counted",
        peer=there.name,
        mine=key,
        theirs=theirs,
        page=page,
        threads=threads,
        each=each,
        immediate=11,
    )
    assert there.ask("end_of_spin", key=key) == [threads * each, 0]
    for process in (here, there):
        take_back(process, key)


@gpus_only
def test_a_kernel_that_waits_for_a_counter_sees_the_bytes_of_all_writes(pair):
    counted_writes_wake_a_kernel(*pair)


@gpus_only
@pytest.mark.gpu1
def test_a_kernel_waits_for_a_counter_of_writes_over_tcp(start):
    here, there = start("here", backends="tcp"), start("there", backends="tcp")
    introduce(here, there)
    counted_writes_wake_a_kernel(here, there)


def test_a_notification_comes_when_the_bytes_are_there(pair):
    here, there = pair
    for number in range(20):
        plan = ["uniform", BUFFER, 16384, min(4000, BUFFER // 16384), number]
        _, region = fill(here, there, BUFFER)
        there.begin("take")
        here.ask(
            "move",
            op="write",
            peer=there.name,
            mine="pages",
            theirs=region,
            plan=plan,
            notification=f"written {number}",
        )
        assert there.end() == {"peer": here.name, "payload": f"written {number}"}
        assert there.ask("check", key="pages", target_seed=2, source_seed=1, plans=[plan]) == ""


@gpus_only
@pytest.mark.alone
@pytest.mark.parametrize("op", ["read", "write"])
def test_a_post_in_the_order_of_a_stream_moves_between_what_comes_before_and_after(pair, op):
    here, there = pair
    size = BUFFER // 8
    _, region = fill(here, there, size, (1, 2), "ordered")
    result = here.ask(
        "in_stream_order",
        op=op,
        peer=there.name,
        mine="ordered",
        theirs=region,
        seed=2 if op == "read" else 9,
    )
    assert result == {"in_flight": True, "wrong": ""}
    plans, source = ([], 2) if op == "read" else ([["uniform", size, size, 1, 0]], 9)
    assert there.ask("check", key="ordered", target_seed=2, source_seed=source, plans=plans) == ""


@gpus_only
@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("stream", ["own", "default"])
def test_long_pages_move_in_the_order_of_a_stream_also_of_the_default_one(pair, op, stream):
    """In one call of the copy engine, which the default stream does not take: there by kernel."""
    here, there = pair
    _source, target = (there, here) if op == "read" else (here, there)
    _, region = fill(here, there, BUFFER, key="long")
    plan = ["uniform", BUFFER, 8 * MIB + 8, 20, 5]
    assert (
        here.ask(
            "move_on_stream",
            op=op,
            peer=there.name,
            mine="long",
            theirs=region,
            plan=plan,
            default=stream == "default",
        )
        == "done"
    )
    theirs, ours = (1, 2) if target is here else (2, 1)
    plans = [[*plan[:3], 1, plan[4]], plan]
    assert target.ask("check", key="long", target_seed=theirs, source_seed=ours, plans=plans) == ""


@gpus_only
@pytest.mark.parametrize("place", [PLACES[0]])
def test_pages_of_several_gpus_of_a_peer_move_in_one_post(start, place):
    here, there = start(unique("here"), 0), start(unique("there"), 0)
    size = 4 * MIB
    here.ask("fill", key="mixed", bytes=size, seed=1)
    theirs = [there.ask("fill_on", key=f"on {gpu}", device=gpu, bytes=size, seed=2 + gpu) for gpu in (0, 1)]
    introduce(here, there)
    for page, pages in ((4096, 1000), (3001, 1000), (MIB, 4)):
        assert (
            here.ask(
                "read_from_several",
                peer=there.name,
                mine="mixed",
                theirs=theirs,
                page=page,
                pages=pages,
                seeds=[2, 3],
            )
            == ""
        )


# CUDA graphs

GRAPHED = 16 * MIB + 48


@pytest.fixture
def graph(pair):
    """Call it with what `capture` takes: both sides' tensors are filled, and a request lies in a graph until
    the test has ended."""
    here, there = pair
    made = []

    def capture(op, page, pages, numbers="host"):
        _, region = fill(here, there, GRAPHED, (1, 2), "graphed")
        handle = f"graph {len(made)}"
        state = here.ask(
            "capture",
            handle=handle,
            op=op,
            peer=there.name,
            mine="graphed",
            theirs=region,
            page=page,
            pages=pages,
            numbers=numbers,
        )
        made.append(handle)
        assert state == "captured"
        return handle

    yield capture
    for handle in made:
        if here.alive:
            here.ask("drop_graph", handle=handle)


@gpus_only
@pytest.mark.parametrize("numbers", ["host", "gpu", "graph"])
@pytest.mark.parametrize(
    ("page", "pages"), [(512, 5000), (1000, 3000), (4096, 2000), (3001, 500), (65536, 200), (48, 9)]
)
def test_a_graph_of_a_read_is_replayed_a_hundred_times_with_other_pages(pair, graph, page, pages, numbers):
    handle = graph("read", page, pages, numbers)
    wrong = pair[0].ask(
        "replay",
        handle=handle,
        op="read",
        mine="graphed",
        page=page,
        pages=pages,
        replays=100,
        seed=page,
        source_seed=2,
    )
    assert wrong == ""


@gpus_only
@pytest.mark.parametrize("numbers", ["host", "gpu", "graph"])
@pytest.mark.parametrize(("page", "pages"), [(4096, 2000), (1001, 3000)])
def test_a_graph_of_a_write_is_replayed_a_hundred_times_with_other_pages(pair, graph, page, pages, numbers):
    here, there = pair
    handle = graph("write", page, pages, numbers)
    for replay in range(100):
        there.ask("fill", key="graphed", bytes=GRAPHED, seed=2)
        ours, theirs = here.ask(
            "replay",
            handle=handle,
            op="write",
            mine="graphed",
            page=page,
            pages=pages,
            replays=1,
            seed=replay,
            source_seed=2,
        )
        wrong = there.ask(
            "check_written",
            key="graphed",
            target_seed=2,
            source_seed=1,
            page=page,
            locals_=ours,
            remotes=theirs,
        )
        assert wrong == "", f"replay {replay} of {len(ours)} pages"


@gpus_only
@pytest.mark.parametrize(("page", "pages"), [(4096, 101), (512, 1001), (48, 33), (999, 77)])
def test_numbers_that_a_gpu_wrote_out_of_bounds_are_passed_over_and_told(pair, graph, page, pages):
    handle = graph("read", page, pages, "gpu")
    told = pair[0].ask(
        "replay_with_bad_numbers", handle=handle, mine="graphed", page=page, pages=pages, source_seed=2
    )
    for answer, side in zip(told, ("local", "remote"), strict=True):
        assert answer["wrong"] == "" and answer["page"] == pages // 2, answer
        assert f"the {side} list" in answer["text"], answer


@gpus_only
@pytest.mark.alone
def test_the_host_sees_the_ends_of_replays_without_asking_the_gpu(pair, graph):
    handle = graph("read", 4096, 2000)
    seen = pair[0].ask("wait_for_replays", handle=handle, replays=5)
    assert seen == {"at_once": 0, "in_the_end": 5}


@gpus_only
def test_replays_of_a_graph_are_counted_by_the_peer_after_their_bytes(pair):
    here, there = pair
    key, page, pages, immediate = unique("counted"), 4096 + 16, 1000, 13
    _, theirs = fill(here, there, page * pages, seeds=(7, 8), key=key)
    whole = {"op": "write", "peer": there.name, "mine": key, "theirs": theirs, "page": page, "pages": pages}
    for handle in (f"{key} 1", f"{key} 2"):
        before = there.ask("wait_for_count", immediate=immediate, at_least=0)
        assert here.ask("capture", handle=handle, immediate=immediate, **whole) == "captured"
        for replay in range(1, 6):
            there.ask("fill", key=key, bytes=page * pages, seed=8)
            there.ask("spin_on_counter", key=key, immediate=immediate, at_least=before + replay, seed=7)
            here.ask("replay_blindly", handle=handle)
            assert there.ask("end_of_spin", key=key) == [before + replay, 0]
        here.ask("replay_and_cancel", handle=handle, replays=995)
        assert there.ask("wait_for_count", immediate=immediate, at_least=before + 1000) == before + 1000
        here.ask("drop_graph", handle=handle)
    for process in (here, there):
        take_back(process, key)


@gpus_only
def test_a_captured_request_holds_its_regions_until_it_is_canceled(pair, graph):
    here, there = pair
    handle = graph("read", 4096, 100)
    with pytest.raises(Refused) as refused:
        here.ask("try_deregister", key="graphed", timeout=0)
    assert refused.value.code == "would_block" and "lies in a graph" in refused.value.text
    with pytest.raises(Refused) as refused:
        there.ask("try_deregister", key="graphed", timeout=0.5)
    assert refused.value.code == "timed_out"

    def is_revoked():
        try:
            here.ask("ask_graph", handle=handle, member="check")
        except Refused as error:
            return error.code == "not_found"
        return False

    until(is_revoked)
    here.ask("replay_blindly", handle=handle)
    here.ask("ask_graph", handle=handle, member="cancel")
    assert here.ask("ask_graph", handle=handle, member="state") == "canceled"
    for process in (there, here):
        process.ask("try_deregister", key="graphed", timeout=10)
        process.ask("free", key="graphed")


@gpus_only
@pytest.mark.parametrize("segments", ["plain", "expandable"])
@pytest.mark.parametrize("place", [PLACES[0], PLACES[2]])
def test_a_captured_request_tells_that_its_peer_has_died_and_its_replays_harm_nobody(start, place, segments):
    here, there = start(unique("here"), place[0], segments), start(unique("there"), place[1], segments)
    _, region = fill(here, there, GRAPHED, (1, 2), "graphed")
    here.ask(
        "capture",
        handle="graph",
        op="read",
        peer=there.name,
        mine="graphed",
        theirs=region,
        page=4096,
        pages=1000,
    )
    there.kill()

    def is_lost():
        try:
            here.ask("ask_graph", handle="graph", member="check")
        except Refused as error:
            return error.code == "peer_lost"
        return False

    until(is_lost)
    for _ in range(10):
        here.ask("replay_blindly", handle="graph")
    here.ask("drop_graph", handle="graph")
    here.ask("fill", key="graphed", bytes=GRAPHED, seed=3)
    assert here.ask("check", key="graphed", target_seed=3, source_seed=3, plans=[]) == ""


# Host memory


HOST = 64 * MIB
HOST_PLANS = [
    ["uniform", HOST, 4096, 10_007, 1],
    ["rows", HOST, 3001, 9999, 2],
    ["uniform", HOST, 16 * MIB, 3, 3],
    ["rows", HOST, 1, 1, 4],
]


@gpus_only
@pytest.mark.gpu1
def test_a_gpu_reads_and_writes_what_a_peer_allocated_on_its_host(start):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    for number, plan in enumerate(HOST_PLANS):
        ours = gpu.ask("fill", key="pages", bytes=HOST, seed=1)
        theirs = host.ask("fill_allocated", key=f"allocated {number}", bytes=HOST, seed=2)
        introduce(gpu, host)
        done = gpu.ask("move", op="read", peer=host.name, mine="pages", theirs=theirs, plan=plan)
        assert done["backend"] == "cuda_ipc"
        assert gpu.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""
        gpu.ask("fill", key="pages", bytes=HOST, seed=3)
        gpu.ask("move", op="write", peer=host.name, mine="pages", theirs=theirs, plan=plan)
        assert host.ask("check", key=f"allocated {number}", target_seed=2, source_seed=3, plans=[plan]) == ""
        assert ours


def register_on_host(host, number, shares_a_page):
    """A tensor of the host process, and the region that it is; another region may keep its first page from
    being pinned."""
    whole = host.ask("fill", key=f"registered {number}", bytes=HOST, seed=2)
    part = (
        host.ask("register_part", key=f"registered {number}", part=f"part {number}", length=100)
        if shares_a_page
        else None
    )
    return whole, part


@gpus_only
@pytest.mark.gpu1
@pytest.mark.parametrize("shares_a_page", [False, True])
def test_a_gpu_reads_and_writes_what_a_peer_merely_registered_on_its_host(start, shares_a_page):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    gpu.ask("fill", key="small", bytes=100, seed=5)
    for number, plan in enumerate(HOST_PLANS):
        gpu.ask("fill", key="pages", bytes=HOST, seed=1)
        theirs, part = register_on_host(host, number, shares_a_page)
        introduce(gpu, host)
        if part is not None:  # its first use pins it, and the whole can then not be pinned
            gpu.ask(
                "move", op="read", peer=host.name, mine="small", theirs=part, plan=["uniform", 100, 100, 1, 0]
            )
            assert (
                gpu.ask(
                    "check", key="small", target_seed=5, source_seed=2, plans=[["uniform", 100, 100, 1, 0]]
                )
                == ""
            )
        for _ in range(2):  # the first post of a peer's makes the way
            done = gpu.ask("move", op="read", peer=host.name, mine="pages", theirs=theirs, plan=plan)
            assert done["backend"] == "cuda_ipc"
        assert gpu.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""
        gpu.ask("fill", key="pages", bytes=HOST, seed=3)
        gpu.ask("move", op="write", peer=host.name, mine="pages", theirs=theirs, plan=plan)
        assert host.ask("check", key=f"registered {number}", target_seed=2, source_seed=3, plans=[plan]) == ""
        for key in [f"registered {number}"] + ([f"part {number}"] if part is not None else []):
            host.ask("deregister", key=key)


@gpus_only
@pytest.mark.gpu1
def test_host_memory_that_cannot_be_pinned_is_refused_where_it_shall_not_be_staged(start):
    gpu, host = (
        start(unique("gpu"), 0),
        start(unique("host"), -1, environment={"HEADRACE_CUDA_IPC_STAGING_BYTES": "0"}),
    )
    gpu.ask("fill", key="pages", bytes=HOST, seed=1)
    whole, part = register_on_host(host, 0, True)
    introduce(gpu, host)
    gpu.ask("move", op="read", peer=host.name, mine="pages", theirs=part, plan=["uniform", 100, 100, 1, 0])
    with pytest.raises(Refused) as refused:
        gpu.ask("move", op="read", peer=host.name, mine="pages", theirs=whole, plan=HOST_PLANS[0])
    assert refused.value.code == "not_supported" and "GPUs cannot reach" in refused.value.text


@gpus_only
@pytest.mark.gpu1
def test_a_notification_of_a_write_to_registered_host_memory_comes_when_the_bytes_are_there(start):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    for number in range(20):
        plan = ["uniform", HOST, 16384, 4000, number]
        _, theirs = fill(gpu, host, HOST)
        host.begin("take")
        gpu.ask(
            "move",
            op="write",
            peer=host.name,
            mine="pages",
            theirs=theirs,
            plan=plan,
            notification=f"written {number}",
        )
        assert host.end() == {"peer": gpu.name, "payload": f"written {number}"}
        assert host.ask("check", key="pages", target_seed=2, source_seed=1, plans=[plan]) == ""


@gpus_only
@pytest.mark.gpu1
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_owner_of_registered_host_memory_that_is_killed_ends_every_post(start, after):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    count = 16
    gpu.ask("fill", key="slots", bytes=count * HOST, seed=1)
    theirs = host.ask("fill", key="pages", bytes=HOST, seed=2)
    introduce(gpu, host)
    result = gpu.ask(
        "kill_in_the_middle",
        peer=host.name,
        pid=host.pid,
        mine="slots",
        theirs=theirs,
        bytes=HOST,
        count=count,
        after=after,
        page=16384,
        timeout=20,
        source_seed=2,
    )
    host.process.wait(20)
    assert set(result["codes"]) <= {"done", "peer_lost"}, result["codes"]
    assert result["codes"][:after] == ["done"] * after
    assert result["wrong"] == [] and result["seconds"] < 25
    assert all(code == "peer_lost" and seconds < 1 for code, seconds in result["later"]), result["later"]


@gpus_only
@pytest.mark.gpu1
def test_an_initiator_that_is_killed_leaves_its_owner_whole(start):
    for life in range(3):
        gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
        theirs = host.ask("fill", key="pages", bytes=HOST, seed=2)
        gpu.ask("fill", key="mine", bytes=HOST, seed=1)
        introduce(gpu, host)
        gpu.ask("move", op="read", peer=host.name, mine="mine", theirs=theirs, plan=HOST_PLANS[0])
        gpu.begin(
            "storm", op="read", peer=host.name, mine="mine", theirs=theirs, plans=[HOST_PLANS[0]] * 1000
        )
        time.sleep(0.02 * life)
        gpu.kill()
        until(lambda gpu=gpu, host=host: host.ask("peers")[gpu.name]["lost"])
        host.ask("deregister", key="pages")
        assert host.ask("check", key="pages", target_seed=2, source_seed=2, plans=[]) == ""
        other = start(unique("other"), 0)
        other.ask("fill", key="mine", bytes=HOST, seed=1)
        again = host.ask("fill", key="again", bytes=HOST, seed=4)
        introduce(other, host)
        other.ask("move", op="read", peer=host.name, mine="mine", theirs=again, plan=HOST_PLANS[0])
        assert other.ask("check", key="mine", target_seed=1, source_seed=4, plans=[HOST_PLANS[0]]) == ""


@gpus_only
@pytest.mark.gpu1
def test_host_memory_of_ours_goes_to_and_from_a_peers_gpu(start):
    host, gpu = start(unique("host"), -1), start(unique("gpu"), GPUS - 1)
    for number, plan in enumerate(HOST_PLANS):
        make = "fill" if number % 2 else "fill_allocated"
        host.ask(make, key=f"mine {number}", bytes=HOST, seed=1)
        theirs = gpu.ask("fill", key="pages", bytes=HOST, seed=2)
        introduce(gpu, host)
        done = host.ask("move", op="read", peer=gpu.name, mine=f"mine {number}", theirs=theirs, plan=plan)
        assert done["backend"] == "cuda_ipc"
        assert host.ask("check", key=f"mine {number}", target_seed=1, source_seed=2, plans=[plan]) == ""
        host.ask("fill", key=f"mine {number}", bytes=HOST, seed=3)
        other = [*plan[:4], 77 + number]
        host.ask("move", op="write", peer=gpu.name, mine=f"mine {number}", theirs=theirs, plan=other)
        assert gpu.ask("check", key="pages", target_seed=2, source_seed=3, plans=[other]) == ""
        host.ask("deregister", key=f"mine {number}")


@pytest.mark.parametrize("op", ["read", "write"])
def test_both_directions_at_once(pair, op):
    here, there = pair
    size = BUFFER // 4
    fill(here, there, size, (1, 2), "out")
    fill(here, there, size, (3, 4), "in")
    ours, theirs = here.ask("regions_by_name"), there.ask("regions_by_name")
    plans = [["uniform", size, 4096, 200 + i, 300 + i] for i in range(30)]
    mine, far = ("in", "out") if op == "read" else ("out", "in")
    here.begin("storm", op=op, peer=there.name, mine=mine, theirs=theirs[far], plans=plans)
    there.begin("storm", op=op, peer=here.name, mine=mine, theirs=ours[far], plans=plans)
    here.end(), there.end()
    assert here.ask("check", key="in", target_seed=3, source_seed=2, plans=plans) == ""
    assert there.ask("check", key="in", target_seed=4, source_seed=1, plans=plans) == ""


@pytest.mark.gpu1
def test_explain_names_the_path_that_an_agent_with_every_backend_takes(start):
    here, there = start(unique("here"), backends=""), start(unique("there"), min(1, GPUS - 1), backends="")
    introduce(here, there)
    _, region = fill(here, there, MIB)
    done = here.ask(
        "move", op="read", peer=there.name, mine="pages", theirs=region, plan=["uniform", MIB, 4096, 100, 1]
    )
    assert done["backend"] == BACKEND
    assert BACKEND in done["explain"]
    assert "tcp" in done["explain"], "what else there would have been"


# Containers: PID namespaces of their own, which share the runtime folder


@pytest.mark.parametrize("inside", ["both", "one"])
@pytest.mark.parametrize("place", PLACES)
def test_pages_move_both_ways_between_pid_namespaces(start, place, inside):
    """Memory of the virtual memory API by descriptor. A handle names its process by a number, which both have
    here."""
    under = own_pid_namespace()
    one = start(unique("one"), place[0], place[2], backends="", under=under)
    other = start(unique("other"), place[1], place[2], backends="", under=under if inside == "both" else ())
    assert one.ask("hello")["pid"] == NUMBER
    assert (other.ask("hello")["pid"] == NUMBER) == (inside == "both")
    size = BUFFER // 2
    by_descriptor = place[2] == "expandable" and not STAND_IN
    for number, (here, there, op, kind) in enumerate(
        [
            (x, y, op, kind)
            for x, y in ((one, other), (other, one))
            for op in ("read", "write")
            for kind in ("uniform", "rows")
        ]
    ):
        _, region = fill(here, there, size)
        plan = [kind, size, 4096, 1000, 800 + number]
        there.begin("take")
        done = here.ask(
            "move",
            op=op,
            peer=there.name,
            mine="pages",
            theirs=region,
            plan=plan,
            notification=f"moved {number}",
        )
        assert there.end() == {"peer": here.name, "payload": f"moved {number}"}
        target, source, theirs, ours = (here, there, 1, 2) if op == "read" else (there, here, 2, 1)
        assert target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=[plan]) == "", (
            done["explain"]
        )
        assert source.ask("check", key="pages", target_seed=ours, source_seed=theirs, plans=[]) == "", (
            "the source was changed"
        )
        # Where the numbers differ the driver may know what a handle means.
        allowed = {BACKEND} if by_descriptor else {"tcp"} if inside == "both" else {BACKEND, "tcp"}
        assert done["backend"] in allowed, done["explain"]
        if done["backend"] == "tcp":
            assert "PID namespace" in done["explain"], done["explain"]


@gpus_only
@pytest.mark.gpu1
def test_memory_whose_handle_names_a_process_of_the_same_number_is_refused_in_a_sentence(start):
    under = own_pid_namespace()
    here, there = (
        start(unique(name), min(gpu, GPUS - 1), under=under) for name, gpu in (("here", 0), ("there", 1))
    )
    introduce(here, there)
    _, region = fill(here, there, MIB)
    with pytest.raises(Refused, match="PID namespaces") as refused:
        here.ask(
            "move",
            op="read",
            peer=there.name,
            mine="pages",
            theirs=region,
            plan=["uniform", MIB, 4096, 100, 1],
        )
    assert refused.value.code == "not_supported" and "expandable_segments" in refused.value.text


@pytest.mark.gpu1
def test_a_peer_killed_in_a_pid_namespace_of_its_own_is_lost_and_its_successor_is_used(start):
    under, name = own_pid_namespace(), unique("mortal")
    here = start(unique("here"), 0, "expandable", under=under, backends=BACKEND if not STAND_IN else "tcp")
    for life in range(2):
        there = start(
            name, min(1, GPUS - 1), "expandable", under=under, backends=BACKEND if not STAND_IN else "tcp"
        )
        loaded = here.ask("load", metadata=there.ask("metadata"))
        assert loaded == {"peer": name, "restarted": life > 0}
        _, region = fill(here, there, MIB)
        plan = ["uniform", MIB, 4096, 100, life]
        here.ask("move", op="read", peer=name, mine="pages", theirs=region, plan=plan)
        assert here.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""
        there.kill()
        until(lambda: here.ask("peers")[name]["lost"])


# Over sockets, as between hosts

OVER_TCP = [
    pytest.param((0, 1), marks=two_gpus, id="two_gpus"),
    pytest.param((0, 0), marks=pytest.mark.gpu1, id="one_gpu"),
    pytest.param((0, -1), marks=[pytest.mark.gpu1, gpus_only], id="gpu_and_host"),
    pytest.param((-1, 0), marks=[pytest.mark.gpu1, gpus_only], id="host_and_gpu"),
]


@pytest.mark.parametrize("place", OVER_TCP)
def test_pages_of_every_size_and_place_go_over_tcp(start, place):
    here, there = (
        start(unique("here"), place[0], backends="tcp"),
        start(unique("there"), place[1], backends="tcp"),
    )
    plans = [["uniform", BUFFER, page, count, 500 + number] for number, (page, count) in enumerate(SIZES)]
    plans += [["rows", BUFFER, 3001, 2000, 600], ["rows", BUFFER, 1_000_003, 7, 601]]
    for plan in plans:
        for op in ("read", "write"):
            target, source = (here, there) if op == "read" else (there, here)
            _, region = fill(here, there, BUFFER)
            there.begin("take")
            done = here.ask(
                "move", op=op, peer=there.name, mine="pages", theirs=region, plan=plan, notification="moved"
            )
            assert done["backend"] == "tcp"
            assert there.end() == {"peer": here.name, "payload": "moved"}
            theirs, ours = (1, 2) if target is here else (2, 1)
            assert (
                target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=[plan]) == ""
            ), f"{op} of {plan}"
            assert source.ask("check", key="pages", target_seed=ours, source_seed=theirs, plans=[]) == "", (
                "the source was changed"
            )


@pytest.mark.gpu1
def test_a_peer_killed_while_its_gpu_sends_and_receives_over_tcp_is_lost_and_the_next_is_served(start):
    here = start(unique("here"), 0, backends="tcp")
    for turn in range(3):
        there = start(unique("there"), min(1, GPUS - 1), backends="tcp")
        introduce(here, there)
        _, region = fill(here, there, BUFFER)
        plan = ["uniform", BUFFER, 16384, min(16_384, BUFFER // 16384), 700 + turn]
        op = "read" if turn % 2 == 0 else "write"
        assert (
            here.ask("move", op=op, peer=there.name, mine="pages", theirs=region, plan=plan)["backend"]
            == "tcp"
        )
        here.begin("move", op=op, peer=there.name, mine="pages", theirs=region, plan=plan)
        time.sleep(0.002 * turn)
        there.kill()
        try:
            here.end()  # it may have been done
        except Refused as refused:
            assert refused.code == "peer_lost", refused.text


# Memory that goes


def test_a_region_that_was_deregistered_is_not_found_and_its_memory_is_free_for_others(pair):
    here, there = pair
    size = 64 * MIB if not STAND_IN else MIB
    plan = ["uniform", size, 4096, size // 4096, 5]
    _, region = fill(here, there, size, (1, 2), "gone")
    here.ask("make", handle="old", op="read", peer=there.name, mine="gone", theirs=region, plan=plan)
    here.ask("post", handle="old")
    there.ask("deregister", key="gone")
    with pytest.raises(Refused) as refused:
        here.ask("post", handle="old")
    assert refused.value.code == "not_found"
    there.ask("free", key="gone")
    again = there.ask("fill", key="again", bytes=size, seed=9)
    introduce(here, there)
    with pytest.raises(Refused) as refused:
        here.ask("post", handle="old")
    assert refused.value.code == "not_found"
    here.ask("drop", handle="old")
    here.ask("fill", key="gone", bytes=size, seed=1)
    here.ask("move", op="read", peer=there.name, mine="gone", theirs=again, plan=plan)
    assert here.ask("check", key="gone", target_seed=1, source_seed=9, plans=[plan]) == ""
    there.ask("deregister", key="again"), there.ask("free", key="again")
    here.ask("deregister", key="gone"), here.ask("free", key="gone")


@pytest.mark.alone
def test_a_read_that_races_with_a_deregistration_is_right_or_not_found(pair):
    here, there = pair
    size = 32 * MIB if not STAND_IN else MIB
    for round_ in range(3):
        _, region = fill(here, there, size, (1, 20 + round_), "raced")
        here.begin(
            "read_until_refused",
            peer=there.name,
            mine="raced",
            theirs=region,
            bytes=size,
            source_seed=20 + round_,
            seconds=30,
        )
        time.sleep(0.3)
        there.ask("deregister", key="raced")
        there.ask("free", key="raced")
        there.ask("fill_unregistered", key="other", bytes=size, seed=99)
        result = here.end()
        assert result["wrong"] == "" and result["code"] == "not_found", result
        assert result["done"] > 0
        there.ask("free", key="other")
        here.ask("deregister", key="raced"), here.ask("free", key="raced")


@gpus_only
def test_memory_that_was_freed_behind_an_address_is_not_found(pair):
    here, there = pair
    size = 64 * MIB
    plan = ["uniform", size, 4096, 100, 5]
    here.ask("fill", key="mine", bytes=size, seed=1)
    for reused in (False, True):
        there.ask("release_memory")
        before = there.ask("fill_unregistered", key="raw", bytes=size, seed=2)
        region = there.ask("register_address", key="raw", length=size)
        there.ask("free", key="raw")
        if reused:  # torch asks the driver for as much again, which gives the same address where it can
            after = there.ask("fill_unregistered", key="raw", bytes=size, seed=3)
            print("the same address" if after == before else "another address")
        introduce(here, there)
        with pytest.raises(Refused) as refused:
            here.ask("move", op="read", peer=there.name, mine="mine", theirs=region, plan=plan)
        assert refused.value.code == "not_found", refused.value
        with pytest.raises(Refused) as refused:  # by its own process too
            there.ask("move", op="read", peer=there.name, mine="raw", theirs=region, plan=plan)
        assert refused.value.code == "not_found", refused.value
        there.ask("deregister", key="raw")
        there.ask("free", key="raw")
    here.ask("deregister", key="mine"), here.ask("free", key="mine")


@gpus_only
def test_a_registered_tensor_stays_until_it_is_deregistered(pair):
    here, there = pair
    size = 256 * MIB
    plan = ["uniform", size, 4096, 1000, 5]
    _, region = fill(here, there, size, (1, 2), "kept")
    held = there.ask("free", key="kept")
    assert held >= size
    here.ask("move", op="read", peer=there.name, mine="kept", theirs=region, plan=plan)
    assert here.ask("check", key="kept", target_seed=1, source_seed=2, plans=[plan]) == ""
    there.ask("deregister", key="kept")
    assert (
        there.ask("release_memory") <= held - size // 2
    )  # what lies in one piece of memory with others stays
    here.ask("deregister", key="kept"), here.ask("free", key="kept")


@gpus_only
@pytest.mark.parametrize("place", [PLACES[0]])
def test_a_tensor_of_a_gpu_that_is_not_the_current_one_is_registered(start, place):
    here, there = start(unique("here"), place[0]), start(unique("there"), place[1])
    there.ask("fill_unregistered", key="pages", bytes=MIB, seed=2)
    region = there.ask("register_while_current", key="pages", current=0)
    here.ask("fill", key="pages", bytes=MIB, seed=1)
    introduce(here, there)
    plan = ["uniform", MIB, 4096, 100, 1]
    here.ask("move", op="read", peer=there.name, mine="pages", theirs=region, plan=plan)
    assert here.ask("check", key="pages", target_seed=1, source_seed=2, plans=[plan]) == ""


@gpus_only
@pytest.mark.gpu1
def test_a_gpu_that_is_not_there_or_not_the_memorys_is_named_in_a_sentence(start):
    process = start(unique("here"))
    process.ask("fill_unregistered", key="pages", bytes=MIB, seed=1)
    with pytest.raises(Refused, match="there is no GPU 99: this process sees"):
        process.ask("register_address", key="pages", length=MIB, device=99)
    with pytest.raises(Refused, match="names no device"):
        process.ask("register_address", key="pages", length=MIB, device=-1)
    if GPUS > 1:
        with pytest.raises(Refused, match="was registered as memory of GPU 1, and is memory of GPU 0"):
            process.ask("register_address", key="pages", length=MIB, device=1)
    with pytest.raises(Refused):
        process.ask("register_address", key="pages", length=1 << 40)


# Mappings

MAPPED = MIB + 13 if STAND_IN else 48 * MIB + 13
MAPPABLE = "fill_allocated" if STAND_IN else "fill"


def map_for_us(here, there, key, seed=2, how=MAPPABLE, bytes_=MAPPED):
    """Memory of the peer's, filled, and mapped by us under the same name; its region's id."""
    region = there.ask(how, key=key, bytes=bytes_, seed=seed)
    introduce(here, there)
    device = -1 if STAND_IN else here.device
    told = here.ask("map", handle=key, peer=there.name, theirs=region)
    assert told == {
        "device": device,
        "bytes": bytes_,
        "writable": how != "fill_read_only",
        "dlpack": [1, 0] if STAND_IN else [2, device],
    }
    return region


def take_back(there, key):
    there.ask("deregister", key=key)
    there.ask("free", key=key)


def test_a_peers_memory_is_mapped_and_read_and_written_by_kernels(pair):
    here, there = pair
    key = unique("mapped")
    map_for_us(here, there, key)
    assert here.ask("check_mapping", handle=key, seed=2) == ""
    assert here.ask("check_copies_of_mapping", handle=key, seed=2) == ""
    there.ask("fill", key=key, bytes=MAPPED, seed=3)
    assert here.ask("check_mapping", handle=key, seed=3) == "", "what the owner wrote after it was mapped"
    there.begin("take")
    here.ask("write_mapping", handle=key, seed=4, peer=there.name)
    assert there.end() == {"peer": here.name, "payload": "written"}
    assert there.ask("check", key=key, target_seed=4, source_seed=4, plans=[]) == ""
    here.ask("unmap", handle=key)
    take_back(there, key)


def test_a_region_that_is_mapped_twice_stays_until_both_are_let_go_of(pair):
    here, there = pair
    key = unique("twice")
    region = map_for_us(here, there, key)
    here.ask("map", handle="again", peer=there.name, theirs=region)
    addresses = [here.ask("mapping_address", handle=handle) for handle in (key, "again")]
    assert STAND_IN or addresses[0] == addresses[1]
    here.ask("unmap", handle=key)
    assert here.ask("check_mapping", handle="again", seed=2) == ""
    here.ask("unmap", handle="again")
    take_back(there, key)


def test_a_mapping_outlives_its_region_and_then_shows_old_bytes(pair):
    here, there = pair
    key = unique("revoked")
    region = map_for_us(here, there, key)
    there.ask("deregister", key=key)
    assert not here.ask("is_mapping_alive", handle=key)
    assert here.ask("check_mapping", handle=key, seed=2) == ""
    with pytest.raises(Refused) as refused:
        here.ask("map", handle="late", peer=there.name, theirs=region)
    assert refused.value.code == "not_found"
    here.ask("unmap", handle=key)
    there.ask("free", key=key)
    map_for_us(here, there, key)
    assert here.ask("check_mapping", handle=key, seed=2) == ""
    here.ask("unmap", handle=key)
    take_back(there, key)


@gpus_only
def test_a_mapping_is_let_go_of_after_the_kernels_that_use_it(pair):
    here, there = pair
    key = unique("busy")
    map_for_us(here, there, key)
    there.ask("deregister", key=key)  # now nothing but the mapping keeps the memory here
    assert here.ask("let_go_of_mapping_in_use", handle=key, seed=2) == {"in_flight": True, "wrong": ""}
    there.ask("free", key=key)
    here.ask("fill", key="after", bytes=MIB, seed=1)
    assert here.ask("check", key="after", target_seed=1, source_seed=1, plans=[]) == "", "the GPU is well"


@gpus_only
def test_a_tensor_outlives_its_mapping_and_python_goes_on_while_its_end_waits(pair):
    here, there = pair
    key = unique("tensor")
    map_for_us(here, there, key)
    assert here.ask("let_go_of_last_tensor", handle=key, seed=2) == {
        "in_flight": True,
        "others_ran": True,
        "wrong": "",
    }
    take_back(there, key)


@gpus_only
def test_a_mapping_of_read_only_memory_says_so(pair):
    here, there = pair
    key = unique("read-only")
    map_for_us(here, there, key, how="fill_read_only")
    told = here.ask("describe_mapping", handle=key)
    interface = {
        "version": 3,
        "shape": [MAPPED],
        "typestr": "|u1",
        "data": [told["address"], True],
        "strides": None,
        "stream": None,
    }
    assert told["interface"] == interface and not told["plain"]
    assert here.ask("check_mapping", handle=key, seed=2) == ""
    here.ask("unmap", handle=key)
    take_back(there, key)


@gpus_only
def test_a_mapping_for_a_gpu_is_not_the_cpus_and_gpu_memory_is_not_mapped_for_it(pair):
    here, there = pair
    key = unique("refused")
    region = map_for_us(here, there, key)
    told = here.ask("describe_mapping", handle=key)
    assert told["interface"]["data"] == [told["address"], False] and told["plain"]
    said = here.ask("refuse_host_views", handle=key)
    assert len(said) == 4 and all("torch.from_dlpack" in sentence for sentence in said), said
    here.ask("unmap", handle=key)
    for device, code, text in [
        ("cpu", "invalid_argument", "name the GPU"),
        (99, "invalid_argument", "there is no GPU 99: this process sees"),
        (-2, "invalid_argument", "there is no GPU -2"),
    ]:
        with pytest.raises(Refused, match=text) as refused:
            here.ask("map", handle=key, peer=there.name, theirs=region, device=device)
        assert refused.value.code == code
    take_back(there, key)


@gpus_only
@pytest.mark.gpu1
def test_what_a_peer_allocated_on_its_host_is_mapped_for_a_gpu(start):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    map_for_us(gpu, host, "allocated", how="fill_allocated")
    assert gpu.ask("check_mapping", handle="allocated", seed=2) == ""
    host.begin("take")
    gpu.ask("write_mapping", handle="allocated", seed=4, peer=host.name)
    assert host.end() == {"peer": gpu.name, "payload": "written"}
    assert host.ask("check", key="allocated", target_seed=4, source_seed=4, plans=[]) == ""
    host.ask("deregister", key="allocated")
    assert not gpu.ask("is_mapping_alive", handle="allocated")
    assert gpu.ask("check_mapping", handle="allocated", seed=4) == ""
    gpu.ask("unmap", handle="allocated")
    registered = host.ask("fill_host", key="registered", bytes=MIB, seed=5)
    introduce(gpu, host)
    with pytest.raises(Refused, match="`allocate`") as refused:
        gpu.ask("map", handle="registered", peer=host.name, theirs=registered)
    assert refused.value.code == "not_supported"


@gpus_only
@pytest.mark.gpu1
def test_host_memory_that_is_mapped_for_a_gpu_is_copied_as_that_gpus(start):
    gpu, host = start(unique("gpu"), 0), start(unique("host"), -1)
    map_for_us(gpu, host, "allocated", how="fill_allocated")
    assert gpu.ask("check_copies_of_mapping", handle="allocated", seed=2) == ""


@pytest.mark.parametrize("place", PLACES)
def test_a_mapping_of_a_peer_that_was_killed_shows_old_bytes(start, place):
    here, there = start(unique("here"), place[0], place[2]), start(unique("mortal"), place[1], place[2])
    map_for_us(here, there, "orphan")
    there.kill()
    until(lambda: not here.ask("is_mapping_alive", handle="orphan"))
    assert here.ask("check_mapping", handle="orphan", seed=2) == ""
    here.ask("unmap", handle="orphan")
    here.ask("fill", key="after", bytes=MIB, seed=1)
    assert here.ask("check", key="after", target_seed=1, source_seed=1, plans=[]) == ""


@gpus_only
@pytest.mark.alone
def test_memory_that_was_mapped_is_free_again_after_the_mapping(pair):
    here, there = pair
    size = 256 * MIB
    map_for_us(here, there, "first", bytes_=MIB)  # with all that either GPU needs to reach the other
    here.ask("check_mapping", handle="first", seed=2)
    here.ask("unmap", handle="first")
    here.ask("release_memory"), take_back(there, "first")
    before = there.ask("used")
    map_for_us(here, there, "large", bytes_=size)
    assert here.ask("check_mapping", handle="large", seed=2) == ""
    here.ask("release_memory")
    assert there.ask("used") >= before + size
    here.ask("unmap", handle="large")
    take_back(there, "large")
    until(lambda: there.ask("used") <= before + size // 2, 20)


# Peers that die

COUNT, SLOT = 100, MIB // 4 if STAND_IN else 64 * MIB


@pytest.mark.alone
@pytest.mark.parametrize(("place", "after"), [
    pytest.param(*[(here, there, segments), after], marks=marks, id=f"{name}-{segments}-after_{after}")
    for name, here, there, marks, cases in [
        ("two_gpus", 0, 1, two_gpus, [("plain", 50), ("expandable", 50), ("plain", 0)]),
        ("one_gpu", 0, 0, [pytest.mark.gpu1], [("expandable", 1)]),
    ]
    for segments, after in cases
])  # fmt: skip
def test_a_peer_killed_in_the_middle_of_100_reads(start, place, after):
    device, other, segments = place
    name = unique("mortal")
    here, third, watcher = (
        start(unique("here"), device, segments),
        start(unique("third"), other, segments),
        start(unique("watcher"), other),
    )
    here.ask("fill", key="slots", bytes=COUNT * SLOT, seed=1)
    third_region = third.ask("fill", key="pages", bytes=SLOT, seed=3)
    introduce(here, third)
    plan = ["uniform", SLOT, 4096, 1000 if not STAND_IN else 10, 8]

    def third_serves():
        here.ask("fill", key="small", bytes=SLOT, seed=5)
        here.ask("move", op="read", peer=third.name, mine="small", theirs=third_region, plan=plan)
        assert here.ask("check", key="small", target_seed=5, source_seed=3, plans=[plan]) == ""
        here.ask("release_memory"), third.ask("release_memory")

    third_serves()
    before = watcher.ask("used")  # with all that `here` needs on either GPU to reach a peer
    for life in range(2):
        mortal = start(name, other, segments)
        region = mortal.ask("fill", key="pages", bytes=SLOT, seed=2)
        loaded = here.ask("load", metadata=mortal.ask("metadata"))
        assert loaded["restarted"] == (life > 0)
        mortal.ask("load", metadata=here.ask("metadata"))
        page = 16384 if life == 0 else SLOT  # by kernel, by copy engine
        result = here.ask(
            "kill_in_the_middle",
            peer=name,
            pid=mortal.pid,
            mine="slots",
            theirs=region,
            bytes=SLOT,
            count=COUNT,
            after=after,
            page=page,
            timeout=20,
            source_seed=2,
        )
        mortal.process.wait(20)
        print({code: result["codes"].count(code) for code in result["codes"]}, f"{result['seconds']:.3f} s")
        assert set(result["codes"]) <= {"done", "peer_lost"}, result["codes"]
        assert result["codes"][:after] == ["done"] * after
        assert result["wrong"] == []
        assert result["seconds"] < 25
        for code, seconds in result["later"]:
            assert code == "peer_lost" and seconds < 1, result["later"]
        until(lambda: here.ask("peers")[name]["lost"])
        here.ask("release_memory")
        # All that the peer had is free again: nothing here holds on to it. What is allowed for is less than
        # its tensor.
        until(lambda: watcher.ask("used") <= before + SLOT * 3 // 4, 20)
        third_serves()
    here.ask("forget", peer=name)
    third_serves()


@pytest.mark.alone
def test_peers_that_leave_in_order_give_all_memory_back(pair, start):
    here, there = pair
    size = MIB if STAND_IN else 256 * MIB
    here.ask("fill", key="visited", bytes=size, seed=1)
    here.ask("release_memory"), there.ask("release_memory")
    before = there.ask("used")
    visitor = start(unique("visitor"), there.device)
    region = visitor.ask("fill", key="pages", bytes=size, seed=2)
    introduce(here, visitor)
    plan = ["uniform", size, 4096, 100, 1]
    here.ask("move", op="read", peer=visitor.name, mine="visited", theirs=region, plan=plan)
    assert here.ask("check", key="visited", target_seed=1, source_seed=2, plans=[plan]) == ""
    visitor.close()
    here.ask("release_memory")
    until(lambda: there.ask("used") <= before + size // 2, 20)
    here.ask("deregister", key="visited"), here.ask("free", key="visited")


# Long


SOAK = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("place", [PLACES[0]])
def test_100_000_random_requests(start, place, pytestconfig):
    """100 requests at a time, each of some pages of any length; every byte of the buffer compared after each
    hundred.

    It fails if --soak-seconds end before the last of them, and says how many were made.
    """
    here, there = start(unique("here"), place[0], place[2]), start(unique("there"), place[1], place[2])
    introduce(here, there)
    size = 16 * MIB if not STAND_IN else MIB
    seconds = pytestconfig.getoption("--soak-seconds")
    end = time.monotonic() + seconds
    made = number = 0
    while made < SOAK:
        assert time.monotonic() < end, (
            f"{made} of {SOAK} requests were made in {seconds:g} s of --soak-seconds"
        )
        op = "read" if number % 2 == 0 else "write"
        target, theirs, ours = (here, 1, 2) if op == "read" else (there, 2, 1)
        page = [100, 513, 4096, 20_000][number // 2 % 4]
        plan = ["rows", size, page, min(3000, size // page), number]
        if number < 2:
            _, region = fill(here, there, size)
        else:
            target.ask("fill", key="pages", bytes=size, seed=theirs)
        made += here.ask(
            "parts", op=op, peer=there.name, mine="pages", theirs=region, plan=plan, requests=100
        )
        assert target.ask("check", key="pages", target_seed=theirs, source_seed=ours, plans=[plan]) == "", (
            f"round {number}"
        )
        if op == "write":
            there.ask("fill", key="pages", bytes=size, seed=2)
        else:
            here.ask("fill", key="pages", bytes=size, seed=1)
        number += 1
    print(f"{made} requests")
