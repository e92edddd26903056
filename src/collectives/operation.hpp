// SPDX-License-Identifier: Apache-2.0
// What the lines of a collective carry, so that ranks in different operations find out.
#pragma once

#include <headrace/comm_call.hpp>

#include <cstdint>
#include <span>

namespace headrace::collectives {

/// What a call moves of its inputs: splits that lie in elements stay here.
[[nodiscard]] inline std::span<const ConstElements> moved_inputs(const CommCall& call) {
  return call.operation == CommOperation::device_all_to_all_v_single ? call.inputs.first(1) : call.inputs;
}

/// The operation that stands for all that move the same bytes: ranks may call all_gather and
/// all_gather_single together.
[[nodiscard]] constexpr CommOperation kind_of(CommOperation operation) {
  switch (operation) {
    case CommOperation::all_gather_v:
    case CommOperation::all_gather_single:
      return CommOperation::all_gather;
    case CommOperation::reduce_scatter_v:
    case CommOperation::reduce_scatter_single:
      return CommOperation::reduce_scatter;
    case CommOperation::all_to_all_single:
    case CommOperation::all_to_all_v_single:
      return CommOperation::all_to_all;
    case CommOperation::gather_single:
      return CommOperation::gather;
    default:
      return operation;
  }
}

[[nodiscard]] constexpr bool reduces(CommOperation operation) {
  const CommOperation kind = kind_of(operation);
  return kind == CommOperation::all_reduce || kind == CommOperation::reduce ||
         kind == CommOperation::reduce_scatter || kind == CommOperation::reduce_scatter_quantized;
}

// A tag holds the kind of the operation and the lower 24 bits of its number.
[[nodiscard]] constexpr std::uint32_t operation_tag(CommOperation operation, std::uint64_t number) {
  return static_cast<std::uint32_t>(kind_of(operation)) << 24 | static_cast<std::uint32_t>(number & 0xffffff);
}
/// The tag under which ranks compare what they call: the same for every operation.
[[nodiscard]] constexpr std::uint32_t check_tag(std::uint64_t number) {
  return 0xffU << 24 | static_cast<std::uint32_t>(number & 0xffffff);
}
[[nodiscard]] constexpr CommOperation operation_of(std::uint32_t tag) {
  return static_cast<CommOperation>(tag >> 24);
}
[[nodiscard]] constexpr std::uint32_t number_of(std::uint32_t tag) { return tag & 0xffffff; }

}  // namespace headrace::collectives
