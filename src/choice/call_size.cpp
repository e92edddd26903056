// SPDX-License-Identifier: Apache-2.0
#include "choice/call_size.hpp"

#include <algorithm>
#include <limits>
#include <span>

namespace headrace::choice {
namespace {

constexpr auto longest = std::numeric_limits<std::uint64_t>::max();

std::uint64_t most_elements(std::span<const headrace_comm_elements_v1> list) {
  std::uint64_t most = 0;
  for (const auto& elements : list) most = std::max(most, elements.count);
  return most;
}

/// nullopt: the ranks do not know it of one another.
std::optional<std::uint64_t> elements_of(const headrace_comm_call_v1& call, int ranks) {
  const std::span inputs(call.inputs, call.input_count), outputs(call.outputs, call.output_count);
  switch (call.operation) {
    case HEADRACE_COMM_BARRIER:
      return 0;
    case HEADRACE_COMM_ALL_TO_ALL:
    case HEADRACE_COMM_ALL_TO_ALL_V_SINGLE:
      return std::nullopt;
    case HEADRACE_COMM_ALL_TO_ALL_SINGLE:
      return most_elements(inputs) / static_cast<std::uint64_t>(ranks);
    case HEADRACE_COMM_ALL_GATHER_V:
    case HEADRACE_COMM_SCATTER:
      return most_elements(outputs);
    case HEADRACE_COMM_REDUCE_SCATTER:
    case HEADRACE_COMM_REDUCE_SCATTER_SINGLE:
      return most_elements(outputs);
    default:
      return most_elements(inputs);
  }
}

}  // namespace

CallSize size_of(const headrace_comm_call_v1& call, int ranks) {
  CallSize size{static_cast<CommOperation>(call.operation), 0, longest};
  if (call.input_count != 0 || call.output_count != 0) {
    const auto& first = call.input_count != 0 ? call.inputs[0] : call.outputs[0];
    size.dtype_bytes = static_cast<int>(element_bytes(static_cast<DType>(first.dtype)));
  }
  if (const auto elements = elements_of(call, ranks))
    size.bytes = *elements * static_cast<std::uint64_t>(size.dtype_bytes);
  return size;
}

}  // namespace headrace::choice
