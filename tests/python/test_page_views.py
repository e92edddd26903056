# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Pages that are strided views of arrays: the bytes arrive as NumPy computes them, and impossible views are
refused."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace
from conftest import unique
from test_memory import DlpackOnly

TOKENS, HEADS, DIM = 16, 8, 32


def random_array(random, shape):
    return random.integers(0, 65536, shape, np.uint16)


@pytest.fixture(params=["fake", "shm", "shm allocated", "tcp"])
def pair(request):
    """Two agents over one backend, and functions that make arrays and introduce the agents."""
    backend, *allocated = request.param.split()
    options = {"backends": [backend]}
    random = np.random.default_rng()
    with (
        headrace.Agent(unique("left"), **options) as left,
        headrace.Agent(unique("right"), **options) as right,
    ):

        def cache(agent, shape):
            if allocated:
                memory = agent.allocate(int(np.prod(shape)) * 2)
                array = memory.numpy("uint16", shape)
                array[...] = random_array(random, shape)
                return memory, array
            array = random_array(random, shape)
            return agent.register(array), array

        def meet():
            left.import_metadata(right.export_metadata())
            right.import_metadata(left.export_metadata())

        yield left, right, cache, meet


def list_of(agent, pages, peer=None):
    return agent.prepare(pages[0], peer=peer, view=pages[1])


# name: the shape of our array, of theirs, and the pages of each as (block, K or V, token, head, element)
LAYOUTS = {
    "NHD to HND": (
        (2, 20, TOKENS, HEADS, DIM),
        (2, 33, HEADS, TOKENS, DIM),
        lambda a: a.swapaxes(0, 1),
        lambda a: a.transpose(1, 0, 3, 2, 4),
    ),
    "HND to NHD": (
        (2, 20, HEADS, TOKENS, DIM),
        (2, 33, TOKENS, HEADS, DIM),
        lambda a: a.transpose(1, 0, 3, 2, 4),
        lambda a: a.swapaxes(0, 1),
    ),
    "TP 1 from 2": (
        (2, 20, TOKENS, HEADS, DIM),
        (2, 33, TOKENS, HEADS // 2, DIM),
        lambda a: a[:, :, :, HEADS // 2 :].swapaxes(0, 1),
        lambda a: a.swapaxes(0, 1),
    ),
    "TP 2 from 1": (
        (2, 20, TOKENS, HEADS // 2, DIM),
        (2, 33, TOKENS, HEADS, DIM),
        lambda a: a.swapaxes(0, 1),
        lambda a: a[:, :, :, : HEADS // 2].swapaxes(0, 1),
    ),
    "TP 1 from 4, transposed": (
        (2, 20, HEADS, TOKENS, DIM),
        (2, 33, TOKENS, HEADS // 4, DIM),
        lambda a: a[:, :, 2:4].transpose(1, 0, 3, 2, 4),
        lambda a: a.swapaxes(0, 1),
    ),
    "TP 4 from 2": (
        (2, 20, TOKENS, HEADS // 4, DIM),
        (2, 33, HEADS // 2, TOKENS, DIM),
        lambda a: a.swapaxes(0, 1),
        lambda a: a[:, :, 1:3].transpose(1, 0, 3, 2, 4),
    ),
    "elements apart": ((20, 3, 5, 7), (33, 7, 5, 3), lambda a: a, lambda a: a.transpose(0, 3, 2, 1)),
    "odd extents and offsets": (
        (21, 5, 11, 3),
        (34, 11, 9, 3),
        lambda a: a[1:, 1:4, 2:9],
        lambda a: a[1:, 3:10, 4:7].swapaxes(1, 2),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["read", "write"])
def test_pages_change_their_layout_during_a_move(pair, layout, op):
    left, right, cache, meet = pair
    our_shape, their_shape, our_view, their_view = LAYOUTS[layout]
    our_region, ours = cache(left, our_shape)
    their_region, theirs = cache(right, their_shape)
    meet()
    random = np.random.default_rng()
    here, there = random.permutation(20)[:15], random.permutation(33)[:15]
    expected_ours, expected_theirs = ours.copy(), theirs.copy()
    if op == "read":
        our_view(expected_ours)[here] = their_view(theirs)[there]
    else:
        their_view(expected_theirs)[there] = our_view(ours)[here]
    local = list_of(left, headrace.pages_of(our_region, our_view(ours)))
    remote = list_of(
        left, pickle.loads(pickle.dumps(headrace.pages_of(their_region, their_view(theirs)))), right.name
    )
    request = left.make_request(op, local, remote, here, there)
    for _ in range(2):
        request.post()
        request.wait(timeout=30)
    assert (ours == expected_ours).all()
    assert (theirs == expected_theirs).all()


def test_a_list_without_a_view_has_the_elements_of_a_view_contiguously(pair):
    left, right, cache, meet = pair
    their_region, theirs = cache(right, (2, 9, TOKENS, HEADS, DIM))
    staging = np.zeros((9, 2 * HEADS * TOKENS * DIM), np.uint16)
    region = left.register(staging)
    meet()
    view = theirs.transpose(1, 0, 3, 2, 4)
    remote = list_of(left, headrace.pages_of(their_region, view), right.name)
    local = left.prepare([(region, i * staging[0].nbytes, staging[0].nbytes) for i in range(9)])
    left.read(right.name, local, remote, timeout=30)
    assert (staging.reshape(view.shape) == view).all()


def test_rows_of_several_regions_may_be_views():
    random = np.random.default_rng()
    with headrace.Agent(unique("alone"), backends=["fake"]) as agent:
        layers = [random_array(random, (4, TOKENS, HEADS, DIM)) for _ in range(3)]
        target = np.zeros((12, HEADS, TOKENS, DIM), np.uint16)
        regions = [agent.register(layer) for layer in layers]
        to = agent.register(target)
        view = headrace.PageView((TOKENS, HEADS, DIM), None, 2)
        size = layers[0][0].nbytes
        rows = np.array(
            [(region.id, block * size, size) for region in regions for block in range(4)], np.uint64
        )
        ours = list_of(agent, headrace.pages_of(to, target.swapaxes(1, 2)))
        agent.read(agent.name, ours, agent.prepare(rows, peer=agent.name, view=view), timeout=10)
        assert (target.swapaxes(1, 2) == np.concatenate(layers)).all()
        # Pages by address. One element of this view is one byte.
        addresses = [
            (layer[block].__array_interface__["data"][0], size) for layer in layers for block in range(4)
        ]
        local = agent.prepare(addresses, view=headrace.PageView((TOKENS, HEADS, 2 * DIM)))
        far = list_of(agent, headrace.pages_of(to, target.swapaxes(1, 2)), agent.name)
        target[...] = 0
        agent.write(agent.name, local, far, timeout=10)
        assert (target.swapaxes(1, 2) == np.concatenate(layers)).all()


def test_torch_tensors_are_views_like_arrays():
    torch = pytest.importorskip("torch")
    with headrace.Agent(unique("alone"), backends=["fake"]) as agent:
        kv = torch.randn(2, 10, TOKENS, HEADS, DIM).to(torch.bfloat16)
        rank = torch.zeros(2, 10, HEADS // 2, TOKENS, DIM, dtype=torch.bfloat16)
        theirs = headrace.pages_of(agent.register(kv), kv[:, :, :, HEADS // 2 :].transpose(0, 1))
        ours = headrace.pages_of(agent.register(rank), rank.permute(1, 0, 3, 2, 4))
        assert theirs[1].shape == (2, TOKENS, HEADS // 2, DIM) and theirs[1].item_bytes == 2
        agent.read(agent.name, list_of(agent, ours), list_of(agent, theirs, agent.name), timeout=10)
        assert torch.equal(rank.permute(1, 0, 3, 2, 4), kv[:, :, :, HEADS // 2 :].transpose(0, 1))


def test_pages_of_gives_the_place_of_an_array_in_its_region(agent):
    memory = agent.allocate(4096)
    array = memory.numpy("uint16", (8, 16, 16))
    pages, view = headrace.pages_of(memory, array[2:, 4:8].swapaxes(1, 2))
    assert (pages.region, pages.base_bytes, pages.stride_bytes, pages.page_bytes, pages.count) == (
        memory.region.id,
        2 * 512 + 128,
        512,
        128,
        6,
    )
    assert (view.shape, view.strides_bytes, view.item_bytes) == ((16, 4), (2, 32), 2)
    assert repr(view) == "PageView(shape=(16, 4), strides_bytes=(2, 32), item_bytes=2)"
    assert repr(pickle.loads(pickle.dumps(view))) == repr(view)
    pages, view = headrace.pages_of(memory.region, DlpackOnly(array[0, 0]))
    assert (pages.count, pages.stride_bytes, view.shape) == (16, 2, (1,))
    one, _ = headrace.pages_of(memory, array[3:4])
    assert (one.count, one.base_bytes, one.stride_bytes) == (1, 3 * 512, 512)


def test_pages_of_refuses_an_array_that_it_cannot_describe(agent):
    memory = agent.allocate(4096)
    array = memory.numpy("uint16", (8, 16, 16))
    with pytest.raises(headrace.InvalidArgument, match="is not in region"):
        headrace.pages_of(memory, np.zeros((3, 4)))
    with pytest.raises(headrace.InvalidArgument, match="must be positive"):
        headrace.pages_of(memory, array[::-1])
    with pytest.raises(headrace.InvalidArgument, match="first dimension"):
        headrace.pages_of(memory, array[:0])
    with pytest.raises(headrace.InvalidArgument, match="give the Region"):
        headrace.pages_of(memory.region.id, array)
    with pytest.raises(headrace.InvalidArgument, match="NumPy array"):
        headrace.pages_of(memory, 7)
    with pytest.raises(headrace.InvalidArgument, match="strides go forward"):
        pages, view = headrace.pages_of(memory, array[:, ::-1])
        agent.prepare(pages, view=view)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda: headrace.PageView((1, 2, 3, 4, 5)), "5 dimensions.* 1 to 4"),
        (lambda: headrace.PageView(()), "0 dimensions"),
        (lambda: headrace.PageView((4, 0)), "extent 0.* at least 1"),
        (lambda: headrace.PageView((4, 4), (8,)), "1 strides"),
        (lambda: headrace.PageView((4, 4), (-4, 1)), "stride -4"),
        (lambda: headrace.PageView((4, 4), (0, 1)), "stride 0"),
        (lambda: headrace.PageView((4, 4), (1, 1)), "make the strides longer"),
        (lambda: headrace.PageView((4, 4), None, 0), "at least one"),
        (lambda: headrace.PageView((2**62, 4)), "2\\^63"),
        (lambda: headrace.PageView((4, 4), (2000, 1)), "page 0 .*spread over 6004 bytes.* runs over the end"),
    ],
)
def test_an_impossible_view_is_refused_with_the_expected_value(agent, view, words):
    memory = agent.allocate(4096)
    with pytest.raises(headrace.InvalidArgument, match=words):
        agent.prepare(headrace.UniformPages(memory, 0, 64, 0, 3), view=view())


def test_pages_by_columns_cannot_be_views(agent):
    memory = agent.allocate(4096)
    columns = headrace.RegionPages(memory, np.array([0, 64], np.uint64), 16)
    assert len(agent.prepare(columns)) == 2
    for peer in (None, agent.name):
        with pytest.raises(headrace.InvalidArgument, match="for a view give rows"):
            agent.prepare(columns, peer=peer, view=headrace.PageView((4, 4), (8, 1)))


def test_lengths_and_strides_of_lists_of_views_are_checked(agent):
    memory = agent.allocate(4096)
    view = headrace.PageView((4, 4), (8, 1))
    with pytest.raises(headrace.InvalidArgument, match="page 0 has 17 bytes, and its view, .* has 16"):
        agent.prepare(headrace.UniformPages(memory, 0, 64, 17, 3), view=view)
    with pytest.raises(headrace.InvalidArgument, match="page 1 has 15 bytes"):
        agent.prepare([(memory, 0, 16), (memory, 64, 15)], view=view)
    with pytest.raises(headrace.InvalidArgument, match="stride of 3 pages that are views is 0"):
        agent.prepare(headrace.UniformPages(memory, 0, 0, 0, 3), view=view)
    with pytest.raises(headrace.InvalidArgument, match="page 1 .*spread over 28 bytes"):
        agent.prepare([(memory, 0, 16), (memory, 4069, 16)], view=view)
    assert agent.prepare([(memory, 0, 16), (memory, 4068, 16)], view=view).bytes == 32
    with pytest.raises(headrace.NotFound, match="page 0 .*28 bytes"):
        agent.prepare([(memory.region.address + 4069, 16)], view=view)
    assert agent.prepare([(memory.region.address + 4068, 16)], view=view).count == 1


def test_two_sides_must_agree_on_the_shape(agent):
    memory = agent.allocate(4096)
    pages = headrace.UniformPages(memory, 0, 64, 0, 2)
    local = agent.prepare(pages, view=headrace.PageView((4, 8)))
    with pytest.raises(
        headrace.InvalidArgument, match=r"\(4, 8\) of 1 byte, .*\(8, 4\) of 1 byte.*let the strides differ"
    ):
        agent.make_request(
            "read", local, agent.prepare(pages, peer=agent.name, view=headrace.PageView((8, 4)))
        )
    with pytest.raises(headrace.InvalidArgument, match="32 bytes here and 36 bytes at the far side"):
        agent.make_request(
            "read", local, agent.prepare(pages, peer=agent.name, view=headrace.PageView((4, 9)))
        )


def test_overlapping_destinations_are_found_if_the_check_is_on(monkeypatch):
    monkeypatch.setenv("HEADRACE_CHECK", "1")
    with headrace.Agent(unique("checked"), backends=["fake"]) as agent:
        memory = agent.allocate(4096)
        # The heads of one block lie between those of another and share no byte with them.
        heads = headrace.PageView((4, 8), (16, 1))
        local = agent.prepare([(memory, 0, 32), (memory, 8, 32)], view=heads)
        far = agent.prepare(headrace.UniformPages(memory, 2048, 32, 32, 2), peer=agent.name)
        agent.make_request("read", local, far)
        touching = agent.prepare([(memory, 0, 32), (memory, 7, 32)], view=heads)
        with pytest.raises(headrace.InvalidArgument, match="pages 0 and 1 of the destination overlap"):
            agent.make_request("read", touching, far)
        agent.make_request("write", touching, far)
        twice = agent.prepare(
            headrace.UniformPages(memory, 0, 64, 0, 2), view=headrace.PageView((2, 2, 8), (30, 4, 1))
        )
        with pytest.raises(
            headrace.InvalidArgument, match="page 0 of the destination overlaps itself.*too short"
        ):
            agent.make_request(
                "read", twice, agent.prepare(headrace.UniformPages(memory, 2048, 32, 32, 2), peer=agent.name)
            )


def test_views_are_written_to_files_and_read_from_them(tmp_path):
    kv = random_array(np.random.default_rng(), (6, TOKENS, HEADS, DIM))
    back = np.zeros_like(kv)
    path = tmp_path / "cache"
    path.touch()
    size = kv[0].nbytes // 2
    with headrace.Agent(unique("files"), backends=["posix"]) as agent:
        file = agent.register(headrace.MemoryRange("file", path=str(path)))
        there = agent.prepare(headrace.UniformPages(file, 7, size, size, 6), peer=agent.name)
        heads = headrace.pages_of(agent.register(kv), kv[:, :, 2:6].swapaxes(1, 2))
        agent.write(agent.name, list_of(agent, heads), there, timeout=30)
        assert path.read_bytes()[7:] == np.ascontiguousarray(kv[:, :, 2:6].swapaxes(1, 2)).tobytes()
        heads = headrace.pages_of(agent.register(back), back[:, :, 2:6].swapaxes(1, 2))
        agent.read(agent.name, list_of(agent, heads), there, timeout=30)
        assert (back[:, :, 2:6] == kv[:, :, 2:6]).all()
        assert not back[:, :, :2].any() and not back[:, :, 6:].any()


def test_the_program_in_the_documentation_runs(tmp_path):
    text = (Path(__file__).resolve().parents[2] / "docs" / "pages.md").read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "read of 3 pages" in done.stdout
