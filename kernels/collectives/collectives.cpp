// SPDX-License-Identifier: Apache-2.0
#include "kernels/collectives/collectives.hpp"

#include "kernels/collectives/element.cuh"
#include "kernels/common/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace headrace::kernels::collectives {
namespace {

static_assert(offsetof(Header, failed) == Header::failed_at && offsetof(Header, begun) == Header::begun_at &&
              offsetof(Header, places) == Header::places_at);
static_assert(sizeof(SplitLaunch) < 4096 && sizeof(StepLaunch) < 4096 && sizeof(MessagesLaunch) < 4096,
              "an argument of any driver");

/// The kernels that reduce, of one way to travel.
struct FloatSums {
  void *float32, *bfloat16;

  [[nodiscard]] void* fitting(const Reduction& how) const {
    return how.dtype == HEADRACE_FLOAT32 ? float32 : bfloat16;
  }
};
struct Sums {
  FloatSums floats;
  void* any;

  [[nodiscard]] void* fitting(const Reduction& how) const {
    return is_float_sum(how) ? floats.fitting(how) : any;
  }
};

struct Functions {
  void *exchange_packed, *exchange_chunks, *exchange_split, *exchange_step, *exchange_messages,
      *exchange_direct;
  Sums packed, all_reduce_packed, chunks, direct;
  FloatSums dense, all_reduce_dense;

  [[nodiscard]] void* fitting(const Plan& plan) const {
    if (!plan.reduces)
      return plan.is_packed ? exchange_packed : plan.is_direct ? exchange_direct : exchange_chunks;
    const bool is_two_shot = plan.launch.shares != 0;
    const Reduction& how = plan.launch.reduction;
    if (plan.is_dense) return (is_two_shot ? all_reduce_dense : dense).fitting(how);
    if (!plan.is_packed) return (plan.is_direct ? direct : chunks).fitting(how);
    return (is_two_shot ? all_reduce_packed : packed).fitting(how);
  }
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_exchange_packed", offsetof(Functions, exchange_packed)},
    {"headrace_exchange_chunks", offsetof(Functions, exchange_chunks)},
    {"headrace_exchange_split", offsetof(Functions, exchange_split)},
    {"headrace_exchange_step", offsetof(Functions, exchange_step)},
    {"headrace_exchange_messages", offsetof(Functions, exchange_messages)},
    {"headrace_exchange_direct", offsetof(Functions, exchange_direct)},
    {"headrace_sum_packed_float32", offsetof(Functions, packed.floats.float32)},
    {"headrace_sum_packed_bfloat16", offsetof(Functions, packed.floats.bfloat16)},
    {"headrace_reduce_packed_any", offsetof(Functions, packed.any)},
    {"headrace_all_reduce_packed_float32", offsetof(Functions, all_reduce_packed.floats.float32)},
    {"headrace_all_reduce_packed_bfloat16", offsetof(Functions, all_reduce_packed.floats.bfloat16)},
    {"headrace_all_reduce_packed_any", offsetof(Functions, all_reduce_packed.any)},
    {"headrace_sum_chunks_float32", offsetof(Functions, chunks.floats.float32)},
    {"headrace_sum_chunks_bfloat16", offsetof(Functions, chunks.floats.bfloat16)},
    {"headrace_reduce_chunks_any", offsetof(Functions, chunks.any)},
    {"headrace_sum_direct_float32", offsetof(Functions, direct.floats.float32)},
    {"headrace_sum_direct_bfloat16", offsetof(Functions, direct.floats.bfloat16)},
    {"headrace_reduce_direct_any", offsetof(Functions, direct.any)},
    {"headrace_sum_dense_float32", offsetof(Functions, dense.float32)},
    {"headrace_sum_dense_bfloat16", offsetof(Functions, dense.bfloat16)},
    {"headrace_all_reduce_dense_float32", offsetof(Functions, all_reduce_dense.float32)},
    {"headrace_all_reduce_dense_bfloat16", offsetof(Functions, all_reduce_dense.bfloat16)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

constexpr std::uint32_t default_blocks = 32;

/// So that a block has much to do in each round, and boxes of any number of ranks are about as large.
std::uint32_t usual_chunk_bytes(std::uint32_t ranks) {
  constexpr std::uint32_t of_all_ranks = 256 << 10, step = 4096;
  return of_all_ranks / std::max(ranks, 1U) / step * step;
}

std::uint64_t box_bytes(const headrace_collectives_box_v1* box) {
  const std::optional<Shape> shape = shape_of(*box);
  return shape ? shape->bytes() : 0;
}

/// An empty multiprocessor has room for a block of any of these kernels: their launch bounds see to it.
std::uint32_t most_blocks_of(const KernelSet& set, const Shape& shape, std::uint32_t sharing) {
  if (sharing == 0 || sharing > shape.ranks) return 0;
  // Two slots a block: it sends a chunk before the one before has been taken.
  return std::min(set.multiprocessors() / sharing, shape.slots / 2);
}

std::uint32_t most_blocks(void* kernels, const headrace_collectives_box_v1* box, std::uint32_t sharing) {
  const std::optional<Shape> shape = shape_of(*box);
  return shape ? most_blocks_of(KernelSet::of(kernels), *shape, sharing) : 0;
}

std::int32_t run(void* kernels, const headrace_collective_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  std::optional<Plan> plan = plan_of(*args);
  if (!plan) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const auto& functions = set.functions_of<Functions>(family);
  const std::uint32_t most = most_blocks_of(set, plan->launch.shape, args->sharing);
  const std::uint32_t blocks = args->blocks != 0 ? args->blocks : std::min(default_blocks, most);
  if (most == 0 || blocks > most) return invalid_value;
  divide(*plan, blocks);
  if (plan->splits)
    return set.launch(functions.exchange_split, plan->launch.blocks, plan->threads,
                      SplitLaunch{plan->launch, *plan->splits}, stream);
  return set.launch(functions.fitting(*plan), plan->launch.blocks, plan->threads, plan->launch, stream);
}

std::uint64_t copied_bytes(const headrace_collective_v1* args) {
  if (args->struct_size < sizeof *args) return 0;
  const std::optional<Plan> plan = plan_of(*args);
  return plan && can_be_copied(*plan) ? plan->longest : 0;
}

std::int32_t copy_step(void* kernels, const headrace_collective_v1* args, std::uint32_t step,
                       headrace_collectives_copies_v1* copies, void* stream) {
  if (args->struct_size < sizeof *args || copies->struct_size < sizeof *copies) return invalid_value;
  const std::optional<Plan> plan = plan_of(*args);
  if (!plan || !can_be_copied(*plan)) return invalid_value;
  const std::optional<StepLaunch> launch = step_of(*plan, step);
  if (!launch) return invalid_value;
  list_copies(*launch, *copies);
  const KernelSet& set = KernelSet::of(kernels);
  return set.launch(set.functions_of<Functions>(family).exchange_step, 1, step_threads, *launch, stream);
}

std::int32_t exchange_messages(void* kernels, const headrace_collectives_messages_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const std::optional<MessagesLaunch> launch = messages_of(*args);
  if (!launch) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  return set.launch(set.functions_of<Functions>(family).exchange_messages, launch->blocks, chunk_threads,
                    *launch, stream, launch->channel_count);
}

constexpr headrace_collectives_v1 table{{sizeof table, HEADRACE_COLLECTIVES_FAMILY_VERSION, 0},
                                        box_bytes,
                                        most_blocks,
                                        run,
                                        copied_bytes,
                                        copy_step,
                                        exchange_messages};

}  // namespace

constinit const Family family{HEADRACE_COLLECTIVES_FAMILY, &table.family, family_kernels, sizeof(Functions)};

std::optional<Shape> shape_of(const headrace_collectives_box_v1& box) {
  const auto chosen = [](std::uint32_t value, std::uint32_t usual) { return value != 0 ? value : usual; };
  const std::uint32_t packed_bytes = chosen(box.packed_bytes, 256 << 10);
  const Shape shape{box.ranks, packed_bytes / packet_bytes,
                    chosen(box.chunk_bytes, usual_chunk_bytes(box.ranks)), chosen(box.slots, 64)};
  const bool is_possible = box.ranks >= 1 && box.ranks <= most_ranks && packed_bytes % unit_bytes == 0 &&
                           shape.chunk_bytes % unit_bytes == 0 && shape.slots >= 2;
  // Kernels compute with offsets of 32 bits.
  if (!is_possible || shape.bytes() >> 32 != 0) return {};
  return shape;
}

}  // namespace headrace::kernels::collectives
