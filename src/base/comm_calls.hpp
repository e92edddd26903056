// SPDX-License-Identifier: Apache-2.0
// What backends ask of a call as comm_v1.h has it.
#pragma once

#include "base/errors.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace::comm_border {

[[nodiscard]] constexpr bool reduces(std::int32_t operation) {
  return operation == HEADRACE_COMM_ALL_REDUCE || operation == HEADRACE_COMM_REDUCE ||
         (operation >= HEADRACE_COMM_REDUCE_SCATTER && operation <= HEADRACE_COMM_REDUCE_SCATTER_SINGLE);
}

/// The reduction of bytes that does the same to booleans, which are bytes of 0 and 1. Nullopt: there is none.
[[nodiscard]] constexpr std::optional<std::int32_t> reduction_of_bytes(std::int32_t of_booleans) {
  switch (of_booleans) {
    case HEADRACE_COMM_SUM:
    case HEADRACE_COMM_MAX:
    case HEADRACE_COMM_BOR:
      return HEADRACE_COMM_MAX;
    case HEADRACE_COMM_PRODUCT:
    case HEADRACE_COMM_MIN:
    case HEADRACE_COMM_BAND:
      return HEADRACE_COMM_MIN;
    default:
      return std::nullopt;
  }
}

/// For a library whose messages have no tags, and whose receives have a source.
///   errors  not_supported
[[nodiscard]] inline Result<void> check_message(const headrace_comm_call_v1& call, std::string_view library) {
  if (call.tag != 0)
    return make_error(Code::not_supported,
                      "{} has no tags, and tag {} is given: messages of two ranks come in their order",
                      library, call.tag);
  if (call.operation == HEADRACE_COMM_RECV && call.peer < 0)
    return make_error(Code::not_supported, "{} receives from a given rank alone: name the source", library);
  return {};
}

}  // namespace headrace::comm_border
