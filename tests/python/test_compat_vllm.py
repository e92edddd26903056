# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.vllm: prepare/finalize objects, the manager and the plugin, with ranks as threads, on
vLLM's base classes where vLLM is installed, else on stand-ins."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
import vllm_stand_ins
from headrace.compat._moe_ranks import MoERanks
from headrace.compat.deep_ep.utils.math import calc_diff, per_token_cast_back
from moe_threads import ThreadGroup, run_threads
from vllm_stand_ins import quant_config, set_ubatch

vllm_stand_ins.provide()

import vllm.distributed.device_communicators.all2all as managers  # noqa: E402
import vllm.model_executor.layers.fused_moe.all2all_utils as utils  # noqa: E402
import vllm.model_executor.layers.fused_moe.modular_kernel as mk  # noqa: E402
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (  # noqa: E402
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNoOP,
)

from headrace.compat import vllm as plugin  # noqa: E402
from headrace.compat.vllm._handle import ExpertHandle  # noqa: E402
from headrace.compat.vllm.manager import HeadraceBatchedManager, HeadraceStandardManager  # noqa: E402
from headrace.compat.vllm.prepare_finalize import (  # noqa: E402
    HeadraceBatchedPrepareAndFinalize,
    HeadracePrepareAndFinalize,
)

RANKS, MOST, HIDDEN, EXPERTS, TOP_K = 2, 12, 512, 6, 2
EACH = EXPERTS // RANKS
FP8 = torch.float8_e4m3fn
BLOCKS = {"is_block_quantized": True, "quant_dtype": FP8, "block_shape": [128, 128]}
PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


def tokens_of(rank, top_k=TOP_K):
    generator, count = torch.Generator().manual_seed(rank), MOST - rank
    weights, experts = torch.rand(count, EXPERTS, generator=generator).topk(top_k)
    return torch.randn(count, HIDDEN, generator=generator).bfloat16(), weights, experts


def wanted(rows, weights, experts):
    """Expert e makes a row e + 1 times as large."""
    return (weights * (experts + 1)).sum(1, keepdim=True) * rows.float()


@pytest.fixture
def ranks():
    """Handles of ranks that can meet."""
    made = [
        ExpertHandle(MoERanks(group.rank, RANKS, group.all_gather_object), goes_on=False)
        for group in ThreadGroup.of(RANKS)
    ]
    yield made
    for handle in made:
        handle.close()


def new_standard(handle, **options):
    return HeadracePrepareAndFinalize(handle, MOST, RANKS, "moe", "quant", **options)


def new_batched(handle, config=None, **options):
    return HeadraceBatchedPrepareAndFinalize(handle, MOST, RANKS, "moe", config, **options)


def rows_of_experts(rank, rows, experts):
    """[rows, top_k, hidden]: what the experts of this rank make; anything for those of others."""
    local = experts // EACH == rank
    made = rows.float()[:, None] * (experts + 1)[..., None]
    return torch.where(local[..., None], made, torch.nan).to(torch.bfloat16)


def batches_of_experts(rank, batches):
    first = rank * EACH
    return (batches.float() * torch.arange(first + 1, first + EACH + 1)[:, None, None]).bfloat16()


# --- rows of tokens


@pytest.mark.parametrize("is_async", [False, True])
def test_rows_of_tokens_go_to_experts_and_come_back(ranks, is_async):
    def body(handle):
        layer, rank = new_standard(handle), handle.ranks.rank
        assert layer.activation_format is mk.FusedMoEActivationFormat.Standard
        rows, weights, experts = tokens_of(rank)
        given = (rows, weights, experts, EXPERTS, None, False, quant_config())
        if is_async:
            hook, receiver = layer.prepare_async(*given)
            hook()
            got = receiver()
        else:
            got = layer.prepare(*given)
        x, scales, meta, got_experts, got_weights = got
        assert scales is None
        assert meta.expert_num_tokens.tolist() == meta.expert_num_tokens_cpu.tolist()
        every = torch.cat([tokens_of(source)[2] for source in range(RANKS)])
        counts = torch.bincount(every.flatten(), minlength=EXPERTS)[rank * EACH :][:EACH]
        assert meta.expert_num_tokens.tolist() == counts.tolist()
        results = rows_of_experts(rank, x, got_experts)
        output = torch.empty_like(rows)
        given = (output, results, got_weights, got_experts, False, TopKWeightAndReduceDelegate())
        if is_async:
            hook, receiver = layer.finalize_async(*given)
            hook()
            receiver()
        else:
            layer.finalize(*given)
        assert calc_diff(output, wanted(rows, weights, experts)) < 1e-5
        reduced = torch.ones_like(x)
        layer.finalize(output, reduced, got_weights, got_experts, False, TopKWeightAndReduceNoOP())
        ranks_of_tokens = torch.stack([(experts // EACH == other).any(1) for other in range(RANKS)]).sum(0)
        assert torch.equal(output, ranks_of_tokens[:, None].expand_as(output).bfloat16())

    run_threads(ranks, body)


@pytest.mark.parametrize("config", [BLOCKS, {"quant_dtype": FP8, "a1_scale": torch.tensor(2.0)}, {}])
@pytest.mark.parametrize("defers", [False, True])
def test_rows_are_quantized_before_or_after_the_way(ranks, config, defers):
    def body(handle):
        layer = new_standard(handle)
        rows, weights, experts = tokens_of(handle.ranks.rank)
        x, scales, *_ = layer.prepare(
            rows, weights, experts, EXPERTS, None, False, quant_config(**config), defer_input_quant=defers
        )
        expected = torch.cat(
            [
                rows[(experts // EACH == handle.ranks.rank).any(1)]
                for rows, _, experts in map(tokens_of, range(RANKS))
            ]
        )
        if defers or not config:
            assert scales is None and torch.equal(x, expected)
            return
        assert x.dtype == FP8
        back = per_token_cast_back(x, scales) if config is BLOCKS else x.float() * scales
        assert calc_diff(back, expected) < 9e-4

    run_threads(ranks, body)


def test_one_expert_a_token_may_weigh_the_input(ranks):
    def body(handle):
        for new, experts_make in ((new_standard, None), (new_batched, batches_of_experts)):
            layer, rank = new(handle), handle.ranks.rank
            rows, weights, experts = tokens_of(rank, top_k=1)
            x, _, _, got_experts, got_weights = layer.prepare(
                rows, weights, experts, EXPERTS, None, True, quant_config()
            )
            batched = experts_make is not None
            results = experts_make(rank, x) if batched else rows_of_experts(rank, x, got_experts)
            output = torch.empty_like(rows)
            of_rows = (weights, experts) if batched else (got_weights, got_experts)
            layer.finalize(output, results, *of_rows, True, TopKWeightAndReduceDelegate())
            assert calc_diff(output, wanted(rows, weights, experts)) < 2e-5

    run_threads(ranks, body)


# --- batches of experts


@pytest.mark.parametrize("in_8_bits", [False, True])
def test_batches_go_to_experts_and_come_back(ranks, in_8_bits):
    config = quant_config(**(BLOCKS if in_8_bits else {}))

    def body(handle):
        layer, rank = new_batched(handle, config), handle.ranks.rank
        assert layer.activation_format is mk.FusedMoEActivationFormat.BatchedExperts
        assert layer.use_fp8_dispatch == in_8_bits
        rows, weights, experts = tokens_of(rank)
        x, scales, meta, *nothing = layer.prepare(rows, weights, experts, EXPERTS, None, False, config)
        assert nothing == [None, None] and x.shape == (EACH, RANKS * MOST, HIDDEN)
        every = torch.cat([tokens_of(source)[2] for source in range(RANKS)])
        counts = torch.bincount(every.flatten(), minlength=EXPERTS)[rank * EACH :][:EACH]
        assert meta.expert_num_tokens.tolist() == counts.tolist()
        if in_8_bits:
            x = per_token_cast_back(x.view(-1, HIDDEN), scales.reshape(-1, HIDDEN // 128)).view(x.shape)
        output = torch.empty_like(rows)
        layer.finalize(
            output, batches_of_experts(rank, x), weights, experts, False, TopKWeightAndReduceDelegate()
        )
        assert calc_diff(output, wanted(rows, weights, experts)) < (9e-4 if in_8_bits else 1e-5)

    run_threads(ranks, body)


def test_two_batches_alternate(ranks):
    def body(handle):
        layer, rank = new_batched(handle), handle.ranks.rank
        rows, weights, experts = tokens_of(rank)
        begun, ended = [], []
        for number in range(2):
            set_ubatch(number)
            given = (rows * (number + 1), weights, experts, EXPERTS, None, False, quant_config())
            begun.append(layer.prepare_async(*given))
        for number, (hook, receiver) in enumerate(begun):
            set_ubatch(number)
            hook()
            results, output = batches_of_experts(rank, receiver()[0]), torch.empty_like(rows)
            given = (output, results, weights, experts, False, TopKWeightAndReduceDelegate())
            ended.append((output, layer.finalize_async(*given)))
        for number, (output, (hook, receiver)) in enumerate(ended):
            hook()
            receiver()
            assert calc_diff(output, wanted(rows * (number + 1), weights, experts)) < 1e-5

    run_threads(ranks, body)


def test_experts_may_take_packed_scales_and_stand_elsewhere(ranks):
    # The router's expert e is expert 5 - e.
    tables = torch.arange(EXPERTS - 1, -1, -1, dtype=torch.int32)
    config = quant_config(**BLOCKS)

    def body(handle):
        layer, rank = new_batched(handle, config, global_to_physical=tables), handle.ranks.rank
        layer.post_init_setup(SimpleNamespace(supports_packed_ue8m0_act_scales=lambda: True))
        rows, weights, experts = tokens_of(rank)
        x, scales, *_ = layer.prepare(rows, weights, experts, EXPERTS, None, False, config)
        assert scales.dtype == torch.int32 and scales.shape[2] == HIDDEN // 512
        x = per_token_cast_back(x.view(-1, HIDDEN), scales.reshape(-1, HIDDEN // 512)).view(x.shape)
        output = torch.empty_like(rows)
        layer.finalize(
            output, batches_of_experts(rank, x), weights, experts, False, TopKWeightAndReduceDelegate()
        )
        assert calc_diff(output, wanted(rows, weights, EXPERTS - 1 - experts)) < 2e-3

    run_threads(ranks, body)


def test_batches_are_quantized_after_the_way_if_experts_ask_for_another_type(ranks):
    config = quant_config(quant_dtype=FP8, a1_scale=torch.tensor(2.0))

    def body(handle):
        layer = new_batched(handle, config)
        assert not layer.use_fp8_dispatch
        x, scales, *_ = layer.prepare(*tokens_of(handle.ranks.rank), EXPERTS, None, False, config)
        assert x.dtype == FP8 and x.shape == (EACH, RANKS * MOST, HIDDEN) and scales.shape[0] == EACH

    run_threads(ranks, body)


def test_what_layers_refuse(ranks):
    handle = ranks[0]
    rows, weights, experts = tokens_of(0)
    for layer in (new_standard(handle), new_batched(handle)):
        assert layer.supports_async() and layer.output_is_reduced()
        assert (layer.num_dispatchers(), layer.topk_indices_dtype()) == (RANKS, torch.int64)
        with pytest.raises(headrace.NotSupported, match="apply_router_weight_on_input with 2 experts"):
            layer.prepare(rows, weights, experts, EXPERTS, None, True, quant_config())
        with pytest.raises(headrace.InvalidArgument, match="finalize was called before prepare"):
            layer.finalize(rows, rows, weights[:, :1], experts, False, TopKWeightAndReduceDelegate())
    assert new_batched(handle).max_num_tokens_per_rank() == MOST
    assert new_standard(handle).max_num_tokens_per_rank() is None
    with pytest.raises(headrace.InvalidArgument, match="expected TopKWeightAndReduceDelegate"):
        new_batched(handle).finalize(rows, rows, weights, experts, False, TopKWeightAndReduceNoOP())


# --- the manager


def open_managers(kind, size, classes=None):
    """A manager for each rank, each of a class of its own: ranks of vLLM are processes."""
    classes = classes or [type("Manager", (kind,), {}) for _ in range(size)]
    return [of(group) for of, group in zip(classes, ThreadGroup.of(size))]


def new_layer(manager):
    return HeadraceBatchedPrepareAndFinalize(manager.get_handle({}), MOST, manager.world_size)


def test_a_manager_gives_a_handle_and_masks(monkeypatch):
    monkeypatch.setattr("headrace.compat.vllm.manager.HeadraceAll2AllManager._new_ranks", patient_ranks)
    lost = 2

    def body(manager):
        assert manager.support_fault_tolerance
        assert manager.get_handle({}) is manager.get_handle({"max_num_tokens_per_dp_rank": MOST})
        manager.set_num_sms(8)
        assert manager.max_sms_used() == 0
        single_step(manager)
        assert not manager.query_fault() and manager.query_active_mask().tolist() == [0, 0, 0]
        if manager.rank != lost:
            single_step(manager)
            assert manager.query_fault()
            mask = manager.query_active_mask()
            assert mask.tolist() == [0, 0, 1] and manager.query_active_mask() is mask
            manager.clean_buffers()
            assert not manager.query_fault()
            manager.update_mask(lost, True)
            with pytest.raises(
                headrace.NotSupported, match="rank 2 is left out, and ranks come back together"
            ):
                manager.update_mask(lost, False)
        with pytest.raises(headrace.NotSupported, match="by the prepare/finalize object of a layer"):
            manager.dispatch(None, None)
        manager.destroy()

    opened = open_managers(HeadraceBatchedManager, 3)
    run_threads(opened, body)
    for manager in opened:
        manager.destroy_handle()


def patient_ranks(manager):
    return MoERanks(manager._met.rank, manager._met.size, manager._met.gather, wait_limit=2)


def single_step(manager):
    """A step with one expert a token, which differs from rank to rank. Returns the sums and those wanted."""
    layer = new_layer(manager)
    rows, weights, _ = tokens_of(manager.rank, top_k=1)
    count = manager.world_size
    experts = (torch.arange(rows.shape[0]) % count)[:, None]
    x, *_ = layer.prepare(rows, weights, experts, count, None, False, quant_config())
    results = (x.float() * (manager.rank + 1)).bfloat16()
    output = torch.empty_like(rows)
    layer.finalize(output, results, weights, experts, False, TopKWeightAndReduceDelegate())
    return output, wanted(rows, weights, experts), experts


def test_a_group_grows_in_two_stages():
    classes = [type("Manager", (HeadraceBatchedManager,), {}) for _ in range(3)]
    few, more = (open_managers(HeadraceBatchedManager, size, classes) for size in (2, 3))

    def works(manager):
        output, expected, _ = single_step(manager)
        assert calc_diff(output, expected) < 1e-5

    with pytest.raises(headrace.InvalidArgument, match="stage needs a handle to go on with"):
        few[0].get_handle({"stage": True})
    run_threads(few, works)
    handles = [manager.get_handle({}) for manager in few]
    for old, new in zip(few, more):
        assert new.get_handle({"stage": True}) is type(old)._handle
    assert [handle.ranks.size for handle in handles] == [2, 2]  # until all commit
    for manager in more:
        manager.commit_staged_state()
    assert [manager.get_handle({}).ranks.size for manager in more] == [3, 3, 3]
    assert handles == [manager.get_handle({}) for manager in more[:2]]  # layers keep theirs
    run_threads(more, works)
    for manager in more:
        manager.destroy_handle()


def test_ranks_of_several_hosts_are_refused():
    (group,) = ThreadGroup.of(1)
    group.internode = True
    with pytest.raises(headrace.NotSupported, match="the ranks of this group are on several hosts"):
        HeadraceStandardManager(group)


def test_a_group_over_a_tcp_store_serves():
    (group,) = ThreadGroup.of(1)
    store = SimpleNamespace(rank=0, world_size=1, all_gather_obj=group.all_gather_object)
    of = type("Manager", (HeadraceBatchedManager,), {})
    manager = of(group, store)
    output, expected, _ = single_step(manager)
    assert calc_diff(output, expected) < 1e-5
    of.destroy_handle()


# --- the plugin


def test_the_plugin_takes_the_place_of_two_backends(monkeypatch):
    for module, name in (
        (managers, "DeepEPHTAll2AllManager"),
        (managers, "DeepEPLLAll2AllManager"),
        (utils, "maybe_make_prepare_finalize"),
        (utils, "maybe_roundup_layer_hidden_size"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    plugin.register()
    plugin.register()
    assert managers.DeepEPHTAll2AllManager is HeadraceStandardManager
    assert managers.DeepEPLLAll2AllManager is HeadraceBatchedManager

    parallel = SimpleNamespace(
        use_all2all_kernels=True, use_deepep_ht_kernels=False, use_deepep_ll_kernels=True
    )
    moe = SimpleNamespace(moe_parallel_config=parallel, max_num_tokens=MOST)
    (group,) = ThreadGroup.of(1)
    tables = (torch.arange(EXPERTS), None, None)
    for kind, layer in (
        (managers.DeepEPHTAll2AllManager, HeadracePrepareAndFinalize),
        (managers.DeepEPLLAll2AllManager, HeadraceBatchedPrepareAndFinalize),
    ):
        manager = type("Manager", (kind,), {})(group)
        monkeypatch.setattr(utils, "get_ep_all2all_manager", lambda: manager)  # noqa: B023
        made = utils.maybe_make_prepare_finalize(moe, quant_config(), tables)
        assert type(made) is layer and made.num_dispatchers() == 1
        given = utils.maybe_make_prepare_finalize(moe, quant_config(), all2all_manager=manager)
        assert type(given) is layer
        manager.destroy_handle()
    # vLLM's own for all other backends.
    assert utils.maybe_make_prepare_finalize(moe, None, all2all_manager=object()) == "vllm's"
    size = utils.maybe_roundup_layer_hidden_size
    assert [size(hidden, torch.bfloat16, parallel) for hidden in (2880, 2881)] == [2880, 2888]
    parallel.use_deepep_ll_kernels = False
    assert size(2880, torch.bfloat16, parallel) == -2880


def test_vllm_finds_the_plugin_by_an_entry_point_of_a_package_of_its_own():
    project = (PACKAGING / "headrace_vllm" / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]\nheadrace = "headrace_vllm:register"\n' in project
    made = importlib.util.spec_from_file_location(
        "headrace_vllm", PACKAGING / "headrace_vllm" / "src" / "headrace_vllm" / "__init__.py"
    )
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    assert module.register is plugin.register


def test_a_moe_that_did_not_open_is_opened_by_the_next_call():
    attempts = []

    def gather(value):
        attempts.append(value)
        if len(attempts) == 1:
            raise RuntimeError("a rank has not come")
        return [value]

    ranks = MoERanks(0, 1, gather)
    shape = {"experts": 2, "top_k": 1, "hidden": 16, "max_tokens": 4}
    with pytest.raises(RuntimeError, match="a rank has not come") as kept:
        ranks.window(**shape)
    assert ranks.window(**shape).config.ranks == 1
    assert kept.value.__traceback__  # it holds what has failed
    ranks.close()
