# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""torch.ops.headrace.moe_*: dispatch and combine as operators, traced, with gradients."""

import importlib.util
from contextlib import ExitStack

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
from conftest import unique
from headrace import torch_ops
from moe_rank import EXPERTS, HIDDEN, TOKENS, config_of, tokens_of
from moe_threads import Ranks, run_threads

ops = torch.ops.headrace


@pytest.fixture
def open_ranks():
    """Opens ranks, and gives (rank, name of its MoE) for each."""
    names = []
    with ExitStack() as stack:

        def open_them(ranks, routings=8, **changes):
            dtype = getattr(torch, changes.get("combine_dtype", "float32"))
            moes = Ranks(stack, ranks, **changes).moes
            made = [(rank, unique("layer")) for rank in range(ranks)]
            for moe, (_, name) in zip(moes, made):
                names.append(torch_ops.register_moe(moe, name, dtype, routings))
            return made

        yield open_them
        for name in names:
            torch_ops.unregister_moe(name)


def leaves(rank, dtype=torch.float32):
    rows, experts, weights = (torch.from_numpy(array) for array in tokens_of(rank))
    return rows.to(dtype).requires_grad_(), experts, weights.requires_grad_()


def expert_matrices():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-2, 3, (EXPERTS, HIDDEN, HIDDEN), generator=generator).float()


def run_experts(got, counts, first_rows, matrices):
    """Each expert of this rank multiplies its rows by a matrix of its own."""
    results = torch.zeros_like(got)
    for expert, matrix in enumerate(matrices):
        rows = slice(int(first_rows[expert]), int(first_rows[expert]) + int(counts[expert]))
        results = torch.cat([results[: rows.start], got[rows] @ matrix, results[rows.stop :]])
    return results


def by_operators(name, rows, experts, weights, matrices):
    got, _, counts, first_rows, *_, routing = ops.moe_dispatch(rows, experts, weights, None, name)
    return ops.moe_combine(run_experts(got, counts, first_rows, matrices), weights, routing, [], name)


def plainly(rows, experts, weights, matrices):
    """The same by torch alone, where all experts are here."""
    there = (experts >= 0)[..., None, None] * matrices[experts.clamp(min=0)]
    return torch.einsum("tk,th,tkho->to", weights, rows, there)


def compare(rank, run):
    """A step and its gradients, against torch's."""
    rows, experts, weights = leaves(rank)
    wanted_rows, _, wanted_weights = leaves(rank)
    upstream = torch.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN).remainder(7).float()
    sums = run(rows, experts, weights)
    sums.backward(upstream)
    expected = plainly(wanted_rows, experts, wanted_weights, expert_matrices())
    expected.backward(upstream)
    assert torch.equal(sums, expected)  # small whole numbers: each order of the sums is exact
    assert torch.equal(rows.grad, wanted_rows.grad)
    assert torch.equal(weights.grad, wanted_weights.grad)


@pytest.mark.parametrize(
    "changes", [{}, {"layout": "batched"}, {"row_alignment": 8}], ids=["by_expert", "batched", "aligned"]
)
def test_gradients_equal_those_of_torch_on_two_ranks(open_ranks, changes):
    def body(made):
        rank, name = made
        mine = slice(rank * EXPERTS // 2, (rank + 1) * EXPERTS // 2)
        matrices = expert_matrices()[mine]
        for _ in range(2):
            compare(rank, lambda *tensors: by_operators(name, *tensors, matrices))

    run_threads(open_ranks(2, **changes), body)


def test_a_compiled_program_equals_the_eager_one(open_ranks):
    ((rank, name),) = open_ranks(1)
    matrices = expert_matrices()

    def program(rows, experts, weights):
        got, _, _, first_rows, *_, routing = ops.moe_dispatch(rows * 2, experts, weights, None, name)
        local = torch.searchsorted(first_rows[1:], torch.arange(got.shape[0]), right=True)
        results = torch.bmm(got[:, None], matrices[local.clamp(max=EXPERTS - 1)])[:, 0]
        return ops.moe_combine(results, weights, routing, [rows], name) - rows

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    compare(rank, lambda rows, *others: program(rows / 2, *others))
    compare(rank, lambda rows, *others: compiled(rows / 2, *others))


def test_a_token_may_name_an_expert_twice_and_none(open_ranks):
    ((rank, name),) = open_ranks(1)
    matrices = expert_matrices()
    rows, experts, weights = leaves(rank)
    experts[3], experts[4, 1], experts[5] = 2, -1, -1
    wanted_rows, _, wanted_weights = leaves(rank)
    by_operators(name, rows, experts, weights, matrices).sum().backward()
    plainly(wanted_rows, experts, wanted_weights, matrices).sum().backward()
    assert torch.equal(rows.grad, wanted_rows.grad)
    assert torch.equal(weights.grad, wanted_weights.grad)


def test_rows_by_rank_have_a_gradient_and_their_weights_none(open_ranks):
    def body(made):
        rank, name = made
        rows, experts, weights = leaves(rank)
        with pytest.raises(headrace.NotSupported, match="weights have no gradient in the layout by_rank"):
            ops.moe_dispatch(rows, experts, weights, None, name)
        *_, of_rows, of_weights, routing = given = ops.moe_dispatch(
            rows, experts, weights.detach(), None, name
        )
        assert of_rows.shape == of_weights.shape == (given[0].shape[0], 2)
        sums = ops.moe_combine(given[0], None, routing, [], name)
        sums.sum().backward()
        ranks = torch.stack([(experts // (EXPERTS // 2) == other).any(1) for other in range(2)]).sum(0)
        assert torch.equal(sums, rows.detach() * ranks[:, None])
        assert torch.equal(rows.grad, ranks[:, None].expand(TOKENS, HIDDEN).float())
        with pytest.raises(headrace.InvalidArgument, match="where the caller weighs the rows"):
            ops.moe_combine(given[0], weights.detach(), routing, [], name)

    run_threads(open_ranks(2, layout="by_rank"), body)


def test_bfloat16_carries_gradients_too(open_ranks):
    ((rank, name),) = open_ranks(1, dtype="bfloat16", combine_dtype="bfloat16")
    rows, experts, weights = leaves(rank, torch.bfloat16)
    got, *_, routing = ops.moe_dispatch(rows, experts, weights, None, name)
    ops.moe_combine(got * 2, weights, routing, [], name).sum().backward()
    assert rows.grad.dtype == torch.bfloat16
    assert torch.equal(rows.grad, (2 * weights.detach().sum(1)).bfloat16()[:, None].expand(TOKENS, HIDDEN))


def test_out_variants_write_the_same(open_ranks):
    ((rank, name),) = open_ranks(1, scale_bytes=8)
    rows, experts, weights = (tensor.detach() for tensor in leaves(rank))
    scales = torch.arange(TOKENS * 8, dtype=torch.int32).to(torch.uint8).reshape(TOKENS, 8)
    made = ops.moe_dispatch(rows, experts, weights, scales, name)
    out = [torch.full_like(tensor, 7) for tensor in made]
    ops.moe_dispatch_out(rows, experts, weights, scales, *out, name)
    # The numbers of the two dispatches differ, the rest is equal.
    assert all(torch.equal(one, other) for one, other in zip(out[:-1], made[:-1]))
    assert (out[-1] == made[-1] + 1).all()
    again = torch.empty_like(made[0])
    ops.moe_dispatch_again_out(rows, made[-1], again, name)
    assert torch.equal(again, made[0])
    sums = ops.moe_combine(again, weights, made[-1], [rows], name)
    to = torch.ones(TOKENS, HIDDEN)
    ops.moe_combine_out(again, weights, made[-1], [rows], to, True, name)
    assert torch.equal(to, sums + 1)
    with pytest.raises(headrace.InvalidArgument, match=r"expected \[40, 32\] of torch.float32"):
        ops.moe_dispatch_again_out(rows, made[-1], again[:3], name)


def test_torch_checks_schemas_and_fake_tensors(open_ranks):
    ((rank, name),) = open_ranks(1)
    rows, experts, weights = leaves(rank)
    made = ops.moe_dispatch(rows, experts, weights, None, name)
    got, routing = made[0].detach().requires_grad_(), made[-1]
    # Not of test_aot_dispatch: two dispatches have two numbers.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.moe_dispatch, (rows, experts, weights, None, name), test_utils=checks)
    torch.library.opcheck(ops.moe_dispatch_again, (rows, routing, name))
    torch.library.opcheck(ops.moe_combine, (got, weights, routing, [rows], name))
    torch.library.opcheck(ops.moe_entries, (routing, name))


def test_what_operators_refuse(open_ranks):
    ((rank, name),) = open_ranks(1, routings=2)
    rows, experts, weights = (tensor.detach() for tensor in leaves(rank))
    routings = [ops.moe_dispatch(rows, experts, weights, None, name)[-1] for _ in range(3)]
    with pytest.raises(headrace.InvalidArgument, match="dispatch 0 is gone: 2 came after it, and 2 are kept"):
        ops.moe_dispatch_again(rows, routings[0], name)
    got = ops.moe_dispatch_again(rows, routings[1], name)
    with pytest.raises(headrace.InvalidArgument, match="the weights are not those of the dispatch"):
        ops.moe_combine(got, weights + 1, routings[2], [], name)
    with pytest.raises(
        headrace.NotFound, match='no MoE "no" is registered: call register_moe\\(moe, name\\). Registered: '
    ):
        ops.moe_dispatch(rows, experts, weights, None, "no")
    with ExitStack() as stack:
        (other,) = Ranks(stack, 1).moes
        with pytest.raises(headrace.InvalidArgument, match=f'another MoE "{name}" is registered'):
            torch_ops.register_moe(other, name)
        with pytest.raises(headrace.InvalidArgument, match="routings is 0, expected 1 or more"):
            torch_ops.register_moe(other, unique("layer"), routings=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dtype": "uint8"}, "rows of torch.uint8 cannot carry gradients"),
        ({"hidden": 4, "top_k": 3}, "a row has 16 bytes, and the experts and weights of a token have 32"),
    ],
)
def test_rows_that_cannot_carry_gradients_say_so(open_ranks, changes, sentence):
    config = config_of(0, 1, **changes)
    ((_, name),) = open_ranks(1, **changes)
    dtype = getattr(torch, changes.get("dtype", "float32"))
    hidden, top_k = changes.get("hidden", HIDDEN), changes.get("top_k", 2)
    experts, weights = torch.arange(top_k)[None], torch.ones(1, top_k, requires_grad=True)
    *_, routing = ops.moe_dispatch(torch.ones(1, hidden, dtype=dtype), experts, weights.detach(), None, name)
    results = torch.ones(config.output_rows, hidden, requires_grad=True)
    sums = ops.moe_combine(results, weights.detach(), routing, [], name)
    with pytest.raises(headrace.NotSupported, match=sentence):
        sums.sum().backward()
