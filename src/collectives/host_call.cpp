// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_call.hpp"

#include "base/errors.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/operation.hpp"
#include "collectives/quantized.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace headrace::collectives {
namespace {

Part part_of(const Elements& elements) { return {static_cast<std::byte*>(elements.data), elements.bytes()}; }
ConstPart part_of(const ConstElements& elements) {
  return {static_cast<const std::byte*>(elements.data), elements.bytes()};
}

/// Parts of one piece of memory, in a row.
template <class P>
std::vector<P> cut(P whole, std::span<const std::size_t> counts, std::size_t width) {
  std::vector<P> parts;
  parts.reserve(counts.size());
  for (const std::size_t count : counts) {
    parts.push_back({whole.data, count * width});
    whole.data += count * width;
  }
  return parts;
}

/// The part of each rank: its entry of a list, or its share of what lies in a row.
template <class List>
auto parts_of(const List& list, int ranks) {
  std::vector<decltype(part_of(list[0]))> parts;
  const auto wanted = static_cast<std::size_t>(ranks);
  if (list.size() == 1 && wanted != 1) {
    const auto whole = part_of(list[0]);
    return cut(whole, std::vector<std::size_t>(wanted, whole.bytes / wanted), 1);
  }
  parts.reserve(list.size());
  for (const auto& elements : list) parts.push_back(part_of(elements));
  return parts;
}

/// Whether the hints or the size ask for one phase.
Result<bool> is_one_shot(const CommCall& call, const Tuning& tuning) {
  bool one_shot = call.inputs.front().bytes() <= tuning.one_shot_bytes;
  if (call.hints == nullptr) return one_shot;
  for (const auto& [name, value] : *call.hints) {
    if (name != "algorithm")
      return make_error(Code::invalid_argument, "no hint \"{}\" of an operation: did you mean \"algorithm\"?",
                        name);
    if (value != "one_shot" && value != "two_shot")
      return make_error(Code::invalid_argument, "hint algorithm is \"{}\": write one_shot or two_shot",
                        value);
    one_shot = value == "one_shot";
  }
  return one_shot;
}

Result<void> run_all_to_all(Exchange& exchange, const CommCall& call) {
  if (call.operation != CommOperation::all_to_all_v_single)
    return all_to_all(exchange, parts_of(call.outputs, exchange.size()),
                      parts_of(call.inputs, exchange.size()));
  const std::size_t width = element_bytes(call.inputs.front().dtype);
  return all_to_all(exchange, cut(part_of(call.outputs.front()), call.output_splits, width),
                    cut(part_of(call.inputs.front()), call.input_splits, width));
}

/// Splits that lie in elements. They are read once: the caller may write to them.
Result<std::vector<std::size_t>> read_splits(const ConstElements& splits, std::size_t count, const char* of) {
  std::vector<std::size_t> counts;
  std::size_t left = count;
  for (std::size_t rank = 0; rank < splits.count; ++rank) {
    std::int64_t split = 0;
    std::memcpy(&split, static_cast<const std::byte*>(splits.data) + rank * sizeof split, sizeof split);
    if (split < 0 || static_cast<std::uint64_t>(split) > left)
      return make_error(
          Code::invalid_argument,
          "the {} split for rank {} is {}, and {} of the {}'s {} elements are left: give splits "
          "of at least 0 that fit",
          of, rank, split, left, of, count);
    counts.push_back(static_cast<std::size_t>(split));
    left -= counts.back();
  }
  return counts;
}

Result<void> run_device_all_to_all_v(Exchange& exchange, const CommCall& call) {
  const ConstElements& input = call.inputs[0];
  const Elements& output = call.outputs[0];
  HEADRACE_TRY(to, read_splits(call.inputs[1], output.count, "output"));
  HEADRACE_TRY(from, read_splits(call.inputs[2], input.count, "input"));
  const auto mine = static_cast<std::size_t>(exchange.rank());
  if (to[mine] != from[mine])
    return make_error(Code::invalid_argument, "the output split for this rank is {}, its input split {}",
                      to[mine], from[mine]);
  const std::size_t width = element_bytes(input.dtype);
  return all_to_all(exchange, cut(part_of(output), to, width), cut(part_of(input), from, width));
}

Result<void> run_quantized(Exchange& exchange, const CommCall& call, std::size_t block_bytes) {
  const ConstElements& input = call.inputs.front();
  const Elements& output = call.outputs.front();
  return reduce_scatter_quantized(exchange, {static_cast<const float*>(input.data), input.count},
                                  {static_cast<float*>(output.data), output.count},
                                  call.op.kind == ReduceOp::avg, call.seed, block_bytes);
}

}  // namespace

Result<HostPlan> HostPlan::make(const CommCall& call, const Tuning& tuning, int ranks) {
  HostPlan plan;
  plan.block_bytes = tuning.block_bytes;
  if (reduces(call.operation)) {
    HEADRACE_TRY(reduction, Reduction::find(call.op, call.inputs.front().dtype, ranks));
    plan.reduction = reduction;
  }
  if (call.operation == CommOperation::all_reduce) {
    HEADRACE_TRY(one_shot, is_one_shot(call, tuning));
    plan.one_shot = one_shot;
  } else if (call.hints != nullptr && !call.hints->empty()) {
    return make_error(Code::invalid_argument,
                      "it has no hint \"{}\"; of the operations all_reduce alone has one, \"algorithm\"",
                      call.hints->begin()->first);
  }
  return plan;
}

Result<void> HostPlan::run(Exchange& exchange, const CommCall& call) const {
  const int ranks = exchange.size();
  switch (kind_of(call.operation)) {
    case CommOperation::all_reduce: {
      const auto& [in, out] = std::pair(call.inputs.front(), call.outputs.front());
      if (one_shot) return all_reduce_one_shot(exchange, in.data, out.data, in.count, reduction);
      // A link is empty between blocks, and what takes so long needs no cache.
      const std::size_t block = exchange.any_far() ? std::max(in.bytes(), block_bytes) : block_bytes;
      return all_reduce_two_shot(exchange, in.data, out.data, in.count, reduction, block);
    }
    case CommOperation::broadcast:
      return broadcast(exchange, part_of(call.outputs.front()), call.peer);
    case CommOperation::reduce:
      return reduce(exchange, part_of(call.outputs.front()), call.peer, reduction);
    case CommOperation::all_gather:
      return all_gather(exchange, parts_of(call.outputs, ranks), part_of(call.inputs.front()));
    case CommOperation::reduce_scatter:
      return reduce_scatter(exchange, part_of(call.outputs.front()), parts_of(call.inputs, ranks), reduction);
    case CommOperation::reduce_scatter_quantized:
      return run_quantized(exchange, call, block_bytes);
    case CommOperation::all_to_all:
      return run_all_to_all(exchange, call);
    case CommOperation::device_all_to_all_v_single:
      return run_device_all_to_all_v(exchange, call);
    case CommOperation::gather:
      return gather(exchange, parts_of(call.outputs, ranks), part_of(call.inputs.front()), call.peer);
    case CommOperation::scatter:
      return scatter(exchange, part_of(call.outputs.front()), parts_of(call.inputs, ranks), call.peer);
    case CommOperation::monitored_barrier:
      return monitored_barrier(exchange);
    default:
      return barrier(exchange);
  }
}

std::string HostPlan::way(const CommCall& call) const {
  if (call.operation == CommOperation::reduce_scatter_quantized)
    return fmt::format("blocks of {} bytes", block_bytes);
  if (call.operation != CommOperation::all_reduce) return {};
  return one_shot ? "one_shot" : fmt::format("two_shot, blocks of {} bytes", block_bytes);
}

}  // namespace headrace::collectives
