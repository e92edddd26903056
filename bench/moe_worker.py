# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/compare_moe.py: runs the plan that it gets as JSON with one side. Rank 0 prints a line of
JSON for each number of tokens and operation, with the median of the slowest rank's microseconds, or one that
says why the side cannot be run here.

Each expert doubles its rows. All numbers are small and whole, so sums are exact on all sides.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class NotRun(RuntimeError):
    """A side cannot be run here: what it lacks, and what to do."""


@dataclass
class Plan:
    side: str
    rank: int
    ranks: int
    meeting: str  # a folder for all ranks
    tokens: list[int]
    hidden: int
    experts: int
    top_k: int
    device: str
    seconds: float

    @property
    def local_experts(self) -> int:
        return self.experts // self.ranks


class Step:
    """The tokens of a rank, in host memory and on the device, and what must become of them."""

    def __init__(self, plan: Plan, tokens: int, rank: int):
        random = torch.Generator().manual_seed(1000 * tokens + rank)
        shape = (tokens, plan.hidden)
        self.x = torch.randint(-4, 5, shape, generator=random).bfloat16().to(plan.device)
        scores = torch.rand(tokens, plan.experts, generator=random)
        self.experts = scores.topk(plan.top_k)[1].to(plan.device)
        self.weights = torch.randint(1, 3, (tokens, plan.top_k), generator=random).float().to(plan.device)

    def expected_sums(self) -> torch.Tensor:
        return (self.x.float() * 2 * self.weights.sum(1, keepdim=True)).bfloat16()


def expected_rows(plan: Plan, tokens: int) -> torch.Tensor:
    """The rows of this rank's experts, side by side, in the order of ranks and tokens."""
    first, rows = plan.rank * plan.local_experts, []
    steps = [Step(plan, tokens, rank) for rank in range(plan.ranks)]
    for expert in range(first, first + plan.local_experts):
        rows += [step.x[(step.experts == expert).any(1)] for step in steps]
    return torch.cat(rows)


class Side:
    """One library. `dispatch` and `combine` are measured; what lies between them is not."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def begin(self, step: Step) -> None:
        """Takes what a number of tokens needs."""
        self.step = step

    def dispatch(self) -> None:
        raise NotImplementedError

    def rows(self) -> torch.Tensor | None:
        """The rows by expert; None: this library groups them otherwise."""
        return None

    def run_experts(self) -> None:
        raise NotImplementedError

    def combine(self) -> torch.Tensor:
        """Returns the sums, of bfloat16."""
        raise NotImplementedError

    def end(self) -> None:
        """Frees what `begin` has taken."""

    def close(self) -> None:
        pass


# --- Headrace


class HeadraceMoE(Side):
    """headrace.MoE, rows by expert."""

    def __init__(self, plan: Plan):
        import headrace

        super().__init__(plan)
        self.headrace = headrace
        backends = ["shm"] if plan.device == "cpu" else ["shm", "cuda_ipc"]
        self.agent = headrace.Agent(f"moe{plan.rank}", backends=backends, store=f"file://{plan.meeting}")

    def begin(self, step: Step) -> None:
        super().begin(step)
        plan, tokens = self.plan, step.x.shape[0]
        config = self.headrace.MoEConfig(
            rank=plan.rank, ranks=plan.ranks, experts=plan.experts, top_k=plan.top_k, hidden=plan.hidden,
            max_tokens=tokens, wait_limit=60, name=f"moe {tokens}", device=plan.device,
        )  # fmt: skip
        self.moe = self.headrace.MoE(self.agent, config)
        self.agent.publish()
        dist.barrier()
        self.moe.join([f"moe{rank}" for rank in range(plan.ranks)], timeout=60)
        self.routing, self.got = self.moe.new_routing(), self.moe.new_rows()
        self.output = torch.from_dlpack(self.got.rows)
        self.results = torch.empty_like(self.output)
        self.sums = torch.empty_like(step.x)

    def dispatch(self) -> None:
        step = self.step
        self.moe.dispatch(step.x, step.experts, step.weights, routing=self.routing, out=self.got)

    def rows(self) -> torch.Tensor:
        return self.output[: int(torch.from_dlpack(self.got.counts).sum())]

    def run_experts(self) -> None:
        rows = self.rows()
        torch.mul(rows, 2, out=self.results[: rows.shape[0]])

    def combine(self) -> torch.Tensor:
        self.moe.combine(self.results, routing=self.routing, out=self.sums)
        return self.sums

    def end(self) -> None:
        dist.barrier()
        self.moe.close()

    def close(self) -> None:
        self.agent.close()


# --- a plain all-to-all


class AllToAll(Side):
    """What a program does that has only an all-to-all: it sorts the entries by expert, sends a row for each,
    and sorts what has come."""

    def exchange(
        self, output: torch.Tensor, input: torch.Tensor, taken: list[int] | None, sent: list[int] | None
    ) -> None:
        """Moves rows, so many from and to each rank; None: as many each."""
        raise NotImplementedError

    def dispatch(self) -> None:
        plan, step = self.plan, self.step
        flat = step.experts.flatten()
        self.order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=plan.experts).view(plan.ranks, -1)
        got = torch.empty_like(counts)
        self.exchange(got, counts, None, None)
        self.sent, self.taken = counts.sum(1).tolist(), got.sum(1).tolist()
        came = torch.empty(sum(self.taken), plan.hidden, dtype=step.x.dtype, device=step.x.device)
        self.exchange(came, step.x[self.order // plan.top_k], self.taken, self.sent)
        experts = torch.arange(plan.local_experts, device=step.x.device).repeat(plan.ranks)
        self.grouped = experts.repeat_interleave(got.flatten()).argsort(stable=True)
        self.output = came[self.grouped]

    def rows(self) -> torch.Tensor:
        return self.output

    def run_experts(self) -> None:
        self.results = self.output * 2

    def combine(self) -> torch.Tensor:
        plan, step = self.plan, self.step
        back = torch.empty_like(self.results)
        back[self.grouped] = self.results
        came = torch.empty(sum(self.sent), plan.hidden, dtype=step.x.dtype, device=step.x.device)
        self.exchange(came, back, self.sent, self.taken)
        sums = torch.zeros(step.x.shape, dtype=torch.float32, device=step.x.device)
        weights = step.weights.flatten()[self.order].unsqueeze(1)
        return sums.index_add_(0, self.order // plan.top_k, came.float() * weights).bfloat16()


class TorchAllToAll(AllToAll):
    """torch.distributed: gloo on CPUs, nccl on GPUs."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.group = dist.new_group(backend="gloo" if plan.device == "cpu" else "nccl")

    def exchange(
        self, output: torch.Tensor, input: torch.Tensor, taken: list[int] | None, sent: list[int] | None
    ) -> None:
        # As bytes, because gloo moves no bfloat16.
        bytes_of = [tensor.contiguous().view(torch.uint8) for tensor in (output, input)]
        dist.all_to_all_single(bytes_of[0], bytes_of[1], taken, sent, group=self.group)


class HeadraceAllToAll(AllToAll):
    """headrace.Comm.all_to_all_v_single."""

    def __init__(self, plan: Plan):
        import headrace

        super().__init__(plan)
        device = {} if plan.device == "cpu" else {"device": "cuda"}
        backend = "host" if plan.device == "cpu" else "auto"
        self.comm = headrace.new_comm(
            backend, rank=plan.rank, size=plan.ranks, meeting=f"file://{plan.meeting}", **device
        )

    def exchange(
        self, output: torch.Tensor, input: torch.Tensor, taken: list[int] | None, sent: list[int] | None
    ) -> None:
        if taken is None or sent is None:
            self.comm.all_to_all_single(output, input, False)
            return
        length = input.shape[1]
        counts = [[count * length for count in counts] for counts in (taken, sent)]
        self.comm.all_to_all_v_single(output, input, counts[0], counts[1], False)

    def close(self) -> None:
        self.comm.finalize()


# --- other libraries


def needs_a_gpu(plan: Plan, library: str) -> None:
    if plan.device == "cpu":
        raise NotRun(f"{library} moves memory of GPUs alone: give --device cuda on a machine that has them")


class DeepEp(Side):
    """deep_ep.Buffer in normal mode: a row for each rank of a token."""

    ours = False

    def __init__(self, plan: Plan):
        super().__init__(plan)
        if self.ours:
            import headrace.compat.deep_ep.install  # noqa: F401
        else:
            needs_a_gpu(plan, "DeepEP")
        try:
            import deep_ep
        except ImportError as error:
            raise NotRun(
                f"deep_ep cannot be imported ({error}): build github.com/deepseek-ai/DeepEP"
            ) from None
        self.deep_ep = deep_ep

    def begin(self, step: Step) -> None:
        super().begin(step)
        kind = self.deep_ep.Buffer
        row_bytes = self.plan.hidden * 2
        configs = kind.get_dispatch_config(self.plan.ranks), kind.get_combine_config(self.plan.ranks)
        hints = [config.get_nvl_buffer_size_hint(row_bytes, self.plan.ranks) for config in configs]
        worst = 4 * self.plan.ranks * step.x.shape[0] * row_bytes  # what ours needs of many tokens
        self.buffer = kind(dist.group.WORLD, max([*hints, worst]), explicitly_destroy=True)

    def dispatch(self) -> None:
        step, buffer = self.step, self.buffer
        per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(step.experts, self.plan.experts)
        self.came, self.came_experts, self.came_weights, _, self.handle, _ = buffer.dispatch(
            step.x,
            topk_idx=step.experts,
            topk_weights=step.weights,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
        )

    def run_experts(self) -> None:
        weights = self.came_weights.masked_fill(self.came_experts < 0, 0).sum(1, keepdim=True)
        self.results = (self.came.float() * 2 * weights).bfloat16()

    def combine(self) -> torch.Tensor:
        sums: torch.Tensor = self.buffer.combine(self.results, self.handle)[0]
        return sums

    def end(self) -> None:
        dist.barrier()
        self.buffer.destroy()


class HeadraceDeepEp(DeepEp):
    """The same calls on headrace.compat.deep_ep."""

    ours = True


class DeepEpLowLatency(DeepEp):
    """deep_ep.Buffer in low-latency mode: rows by expert, with room for the most that can come."""

    def begin(self, step: Step) -> None:
        Side.begin(self, step)
        kind, plan = self.deep_ep.Buffer, self.plan
        size = kind.get_low_latency_rdma_size_hint(step.x.shape[0], plan.hidden, plan.ranks, plan.experts)
        self.buffer = kind(
            dist.group.WORLD,
            0,
            size,
            low_latency_mode=True,
            num_qps_per_rank=plan.local_experts,
            explicitly_destroy=True,
        )

    def dispatch(self) -> None:
        step = self.step
        self.came, _, self.handle, *_ = self.buffer.low_latency_dispatch(
            step.x, step.experts, step.x.shape[0], self.plan.experts, use_fp8=False
        )

    def run_experts(self) -> None:
        self.results = self.came * 2

    def combine(self) -> torch.Tensor:
        step = self.step
        sums: torch.Tensor = self.buffer.low_latency_combine(
            self.results, step.experts, step.weights, self.handle
        )[0]
        return sums


class FlashInfer(Side):
    """flashinfer.comm.MoeAlltoAll: a row for each rank of a token, in a place for each token of each rank."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        needs_a_gpu(plan, "FlashInfer")
        try:
            from flashinfer.comm import Mapping, MoeAlltoAll
            from flashinfer.comm.mnnvl import MnnvlConfig, TorchDistBackend
        except ImportError as error:
            raise NotRun(f"flashinfer cannot be imported ({error}): pip install flashinfer-python") from None
        self.kind = MoeAlltoAll
        ranks = {"world_size": plan.ranks, "tp_size": plan.ranks, "moe_ep_size": plan.ranks}
        self.mapping = Mapping(rank=plan.rank, gpus_per_node=plan.ranks, **ranks)
        self.meeting = MnnvlConfig(comm_backend=TorchDistBackend(dist.group.WORLD))

    def begin(self, step: Step) -> None:
        super().begin(step)
        plan = self.plan
        self.moe = self.kind(
            self.mapping,
            max_num_tokens=step.x.shape[0],
            top_k=plan.top_k,
            num_experts=plan.experts,
            hidden_size=plan.hidden,
            mnnvl_config=self.meeting,
        )
        self.experts = step.experts.int()

    def dispatch(self) -> None:
        step = self.step
        self.came, self.came_experts, self.came_weights = self.moe.dispatch(
            self.experts,
            [step.x, self.experts, step.weights],
            step.x.shape[0],
            invalid_token_expert_id=-1,
            expert_id_payload_index=1,
        )

    def run_experts(self) -> None:
        weights = self.came_weights.masked_fill(self.came_experts < 0, 0).sum(-1, keepdim=True)
        self.results = (self.came.float() * 2 * weights).bfloat16()

    def combine(self) -> torch.Tensor:
        sums: torch.Tensor = self.moe.combine(self.results, self.step.x.shape[0])
        return sums


class NcclEp(Side):
    """nccl.ep in low-latency mode, from the wheel nccl-extensions or NCCL's contrib/nccl_ep."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        needs_a_gpu(plan, "NCCL EP")
        try:
            import nccl.core
            import nccl.ep
        except ImportError as error:
            raise NotRun(f"nccl.ep cannot be imported ({error}): pip install nccl-extensions") from None
        self.core, self.ep = nccl.core, nccl.ep
        identity = [nccl.core.get_unique_id() if plan.rank == 0 else None]
        dist.broadcast_object_list(identity, 0)
        self.comm = nccl.core.Communicator.init(nranks=plan.ranks, rank=plan.rank, unique_id=identity[0])
        self.stream = torch.cuda.current_stream().cuda_stream

    def tensor(self, of: torch.Tensor) -> Any:
        types = {
            torch.bfloat16: self.core.BFLOAT16,
            torch.int64: self.core.INT64,
            torch.int32: self.core.INT32,
            torch.float32: self.core.FLOAT32,
        }
        return self.ep.NDTensor.create(of.dim(), int(types[of.dtype]), of.data_ptr(), *of.shape)

    def begin(self, step: Step) -> None:
        super().begin(step)
        ep, plan, tokens = self.ep, self.plan, step.x.shape[0]
        config = ep.EpGroupConfig(
            algorithm=ep.NcclEpAlgorithm.LOW_LATENCY,
            num_experts=plan.experts,
            max_send_tokens_per_rank=tokens,
            max_recv_token_slots_per_rank=tokens * plan.ranks,
            token_size_bytes=plan.hidden * 2,
        )
        self.group = ep.EpGroup.create(self.comm, config)
        like = {"dtype": torch.bfloat16, "device": plan.device}
        self.came = torch.empty(plan.local_experts, tokens * plan.ranks, plan.hidden, **like)
        self.results = torch.empty_like(self.came)
        self.counts = torch.empty(plan.local_experts, dtype=torch.int32, device=plan.device)
        self.sums = torch.empty_like(step.x)
        self.tensors = [
            self.tensor(each)
            for each in (step.x, step.experts, step.weights, self.came, self.results, self.counts, self.sums)
        ]

    def dispatch(self) -> None:
        ep = self.ep
        x, experts, _, came, _, counts, _ = self.tensors
        self.handle = ep.EpHandle.create(
            self.group, experts, layout_info=None, config=ep.EpHandleConfig(), stream=self.stream
        )
        self.handle.dispatch(
            ep.EpDispatchInputs(tokens=x),
            ep.EpDispatchOutputs(tokens=came),
            topk_idx=None,
            layout_info=ep.EpLayoutInfo(expert_counters=counts),
            config=ep.EpDispatchConfig(send_only=0, round_scales=0),
            stream=self.stream,
        )
        self.handle.complete(stream=self.stream)

    def run_experts(self) -> None:
        torch.mul(self.came, 2, out=self.results)

    def combine(self) -> torch.Tensor:
        ep = self.ep
        _, _, weights, _, results, _, sums = self.tensors
        self.handle.combine(
            ep.EpCombineInputs(tokens=results),
            ep.EpCombineOutputs(tokens=sums, topk_weights=weights),
            config=ep.EpCombineConfig(send_only=0),
            stream=self.stream,
        )
        self.handle.complete(stream=self.stream)
        return self.sums

    def end(self) -> None:
        torch.cuda.synchronize()
        dist.barrier()
        self.handle.destroy()
        self.group.destroy()


SIDES: dict[str, type[Side]] = {
    "headrace": HeadraceMoE,
    "headrace-deep-ep": HeadraceDeepEp,
    "headrace-all-to-all": HeadraceAllToAll,
    "torch-all-to-all": TorchAllToAll,
    "deep-ep": DeepEp,
    "deep-ep-low-latency": DeepEpLowLatency,
    "flashinfer": FlashInfer,
    "nccl-ep": NcclEp,
}


# --- measuring


def slowest(samples: torch.Tensor) -> None:
    dist.all_reduce(samples, dist.ReduceOp.MAX)


def timed(plan: Plan, run: Callable[[], object]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    run()
    if plan.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def is_right(side: Side, plan: Plan, tokens: int) -> bool:
    """One step, whose rows and sums are compared on all ranks."""
    side.dispatch()
    rows = side.rows()
    right = rows is None or torch.equal(rows, expected_rows(plan, tokens))
    side.run_experts()
    right = torch.equal(side.combine(), side.step.expected_sums()) and right
    wrong = torch.tensor([0.0 if right else 1.0])
    slowest(wrong)
    return float(wrong) == 0


def measure(side: Side, plan: Plan, tokens: int) -> list[dict[str, Any]]:
    side.begin(Step(plan, tokens, plan.rank))
    right = is_right(side, plan, tokens)

    def once() -> tuple[float, float]:
        there = timed(plan, side.dispatch)
        side.run_experts()
        return there, timed(plan, side.combine)

    # All ranks repeat it as often as the slowest one finds right.
    first = torch.tensor([sum(once()) for _ in range(3)], dtype=torch.float64)
    slowest(first)
    repeats = int(min(2000, max(5, plan.seconds / max(float(first.min()), 1e-6))))
    samples = torch.tensor([once() for _ in range(repeats)], dtype=torch.float64)
    slowest(samples)
    right = is_right(side, plan, tokens) and right
    side.end()
    medians = (samples * 1e6).median(0).values.tolist()
    return [
        {"tokens": tokens, "operation": operation, "us": us, "right": right}
        for operation, us in zip(("dispatch", "combine"), medians, strict=True)
    ]


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    if plan.device != "cpu":
        ordinal = plan.rank % torch.cuda.device_count()
        torch.cuda.set_device(ordinal)
        plan.device = f"cuda:{ordinal}"
    # For DeepEP on GPUs the group has both, for the rest what the ranks tell each other is in host memory.
    backend = "gloo" if plan.device == "cpu" else "cpu:gloo,cuda:nccl"
    store = dist.FileStore(str(Path(plan.meeting) / "store"), plan.ranks)
    dist.init_process_group(backend, store=store, rank=plan.rank, world_size=plan.ranks)
    try:
        side = SIDES[plan.side](plan)
    except NotRun as why:
        if plan.rank == 0:
            print(json.dumps({"not run": str(why)}), flush=True)
        return
    for tokens in plan.tokens:
        for row in measure(side, plan, tokens):
            if plan.rank == 0:
                print(json.dumps(row), flush=True)
    side.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
