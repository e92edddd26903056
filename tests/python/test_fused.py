# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.fused on the CPU, and its kernel compiled. test_gpu_comm.py runs it."""

import importlib.util

import pytest

import headrace
from ranks import on_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_the_sum_is_normed_added_to_the_residual_and_cast():
    import torch

    from headrace.fused import FusedAllReduce

    parts = [torch.randint(-8, 8, (5, 96), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    weight, scale = torch.linspace(0.5, 2, 96), torch.tensor(0.25)

    def body(comm):
        fused = FusedAllReduce(comm, 96, torch.bfloat16)
        mine = parts[comm.get_rank()].to(torch.bfloat16)
        residual = torch.ones(5, 96, dtype=torch.bfloat16)
        plain = fused.rms_norm(mine, weight, 1e-5)
        added = fused.rms_norm(mine, weight, 1e-5, residual=residual)
        cast = fused.rms_norm(mine, weight, 1e-5, scale=scale)
        fused.check()
        fused.close()
        return mine, plain, added, residual, cast

    total = (parts[0] + parts[1]).double()
    for rank, (mine, plain, added, residual, cast) in enumerate(on_ranks(2, body)):
        assert torch.equal(mine, parts[rank].to(torch.bfloat16))
        for got, sum in ((plain, total), (added, total + 1), (cast.double() * 0.25, total)):
            norm = sum * (sum.square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight
            torch.testing.assert_close(got.double(), norm, rtol=0.07 if got is not plain else 0.01, atol=0.01)
        assert torch.equal(residual.double(), total + 1) and cast.dtype == torch.float8_e4m3fn


def test_what_does_not_fit_is_refused_with_what_was_expected():
    import torch

    from headrace.fused import FusedAllReduce

    def body(comm):
        fused = FusedAllReduce(comm, 4, torch.float32)
        right, weight = torch.ones(2, 4), torch.ones(4)
        for arguments, more, text in (
            (
                (torch.ones(2, 5), weight),
                {},
                "input is torch.float32 of shape [2, 5] on cpu: give a contiguous",
            ),
            ((torch.ones(4), weight), {}, "shape [0, 4]"),
            ((torch.ones(4, 2).t(), weight), {}, "give a contiguous tensor of torch.float32, shape [2, 4]"),
            ((right, torch.ones(3)), {}, "weight is"),
            ((right, weight), {"residual": torch.ones(1, 4)}, "residual is"),
            ((right, weight), {"scale": torch.ones(2)}, "scale is"),
            ((right, weight), {"output": right.double()}, "output is torch.float64"),
        ):
            with pytest.raises(headrace.InvalidArgument) as raised:
                fused.rms_norm(*arguments, **more)
            assert text in str(raised.value)
        with pytest.raises(headrace.InvalidArgument, match="dtype is torch.int32"):
            FusedAllReduce(comm, 4, torch.int32)
        with pytest.raises(headrace.InvalidArgument, match="give 1 to 65536 columns"):
            FusedAllReduce(comm, 0, torch.float32)

    on_ranks(1, body)


def test_it_is_an_operator_that_changes_the_residual():
    import torch

    from headrace import fused

    def body(comm):
        alone = fused.FusedAllReduce(comm, 4, torch.float32)
        name = fused.register(alone, "of one rank")
        rows, weight, residual = torch.arange(8.0).reshape(2, 4), torch.full((4,), 2.0), torch.ones(2, 4)
        operator = torch.ops.headrace.all_reduce_rms_norm
        got = operator(rows, weight, 1e-6, residual, None, name)
        torch.testing.assert_close(got, 2 * torch.nn.functional.rms_norm(rows + 1, [4], eps=1e-6))
        assert torch.equal(residual, rows + 1)
        for more in ((residual, None), (None, torch.ones(1))):
            torch.library.opcheck(
                operator, (rows, weight, 1e-6, *more, name), test_utils=("test_schema", "test_faketensor")
            )
        with pytest.raises(headrace.InvalidArgument, match='another FusedAllReduce "of one rank"'):
            fused.register(fused.FusedAllReduce(comm, 4, torch.float32), name)
        fused.unregister(name)
        with pytest.raises(
            headrace.NotFound, match=r"is registered: call register\(fused, name\). Registered: none"
        ):
            operator(rows, weight, 1e-6, None, None, name)

    on_ranks(1, body)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("dtype", "output"), [("bf16", "bf16"), ("fp16", "fp8e4nv"), ("fp32", "fp32")])
def test_the_kernel_compiles(dtype, output):
    from headrace import _fused_kernels
    from test_triton import compiled

    tensors = dict.fromkeys(("input", "residual", "weight"), f"*{dtype}")
    arguments = {"window": "i64", **tensors, "scale": "*fp32", "output": f"*{output}", "late": "*i32"}
    arguments |= {"rows": "i32", "epsilon": "fp32"}
    constants = {
        "COLUMNS": 1000,
        "RANKS": 4,
        "PROGRAMS": 32,
        "DATA": 512,
        "BLOCK": 1024,
        "HAS_RESIDUAL": dtype == "bf16",
    }
    kernel = compiled(
        _fused_kernels.reduce_rms_norm, arguments, {**constants, "HAS_SCALE": output == "fp8e4nv"}
    )
    assert kernel.asm["cubin"]
    assert "st.global.v4.b32" in kernel.asm["ptx"]  # 16 bytes at a time to the other ranks
