# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.triton without a GPU: its bitcode, and kernels of Triton that are compiled with it.
test_gpu_comm.py runs them."""

import importlib.util
import os
import re

import pytest

import headrace

PACKAGE = os.path.dirname(headrace.__file__)
BITCODE = os.path.join(PACKAGE, "lib", "headrace_window.bc")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def test_the_bitcode_has_each_function_that_kernels_call():
    with open(BITCODE, "rb") as file:
        bitcode = file.read()
    with open(os.path.join(PACKAGE, "triton.py")) as file:
        source = file.read()
    assert bitcode[:4] == b"BC\xc0\xde"
    called = set(re.findall(r'_call\("(\w+)"', source))
    called |= {f"put_{scope}" for scope in ("thread", "warp", "block")} | {"signal_add", "signal_set"}
    assert len(called) == 20
    # The names of functions lie one after another, so one may end where another begins.
    assert [name for name in called if f"headrace_window_{name}".encode() not in bitcode] == []


def compiled(kernel, arguments, constants, arch=90):
    import triton
    from triton.backends.compiler import GPUTarget

    import headrace.triton

    source = triton.compiler.ASTSource(
        kernel, {**arguments, **dict.fromkeys(constants, "constexpr")}, constants
    )
    options = {"extern_libs": headrace.triton.extern_libs(), "num_warps": 4}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@needs_triton
@pytest.mark.parametrize("scope", ["thread", "warp", "block"])
def test_kernels_of_triton_compile_with_windows(scope):
    import triton_kernels

    arguments = {"window": "i64", "source": "*fp32", "sums": "*fp32", "found": "*i32", "count": "i32"}
    ring = compiled(
        triton_kernels.ring, {**arguments, "rounds": "i32"}, {"SCOPE": scope, "BLOCK": 256}, arch=90
    )
    # Triton has put the bodies in the place of the calls, and the assembler took them.
    assert not re.search(r"^\s*call", ring.asm["ptx"], re.MULTILINE) and ring.asm["cubin"]
    assert "atom.acq_rel.sys.global.add.u64" in ring.asm["ptx"]


@needs_triton
@pytest.mark.parametrize("arch", [80, 100])
def test_the_other_kernels_compile_for_each_kind_of_gpu(arch):
    import triton_kernels

    arguments = {"window": "i64", "value": "i32", "found": "*i32"}
    assert compiled(triton_kernels.store_to_peer, arguments, {"BLOCK": 128}, arch).asm["cubin"]
    arguments = {"window": "i64", "found": "*i32"}
    assert compiled(triton_kernels.count_programs, arguments, {"COUNTER": 2}, arch).asm["cubin"]


@needs_triton
def test_what_a_kernel_calls_wrongly_is_said_when_it_is_compiled():
    import triton

    import triton_wrong_kernels as wrong

    for kernel, text in (
        (wrong.comparison, "comparison is 'more': give one of eq, ne, lt, le, gt, ge"),
        (wrong.scope, "scope is 'grid': give one of thread, warp, block"),
        (wrong.ranks, "takes numbers, one for a program"),
    ):
        with pytest.raises(triton.compiler.errors.CompilationError) as raised:
            compiled(kernel, {"window": "i64", "source": "*fp32"}, {})
        assert text in str(raised.value) + str(raised.value.__cause__)
