// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of a part of a request: memory of the host by copying, memory of GPUs by the driver.
#pragma once

#include "memory/page_copy.hpp"
#include "memory/page_cursor.hpp"

#include <headrace/result.hpp>

#include <atomic>

namespace headrace::local {

struct Move {
  const headrace_prepare_v1* request = nullptr;
  CopyMode mode = CopyMode::cached;
  const std::atomic<bool>* stop = nullptr;  ///< looked at now and then; the result is then canceled
};

/// Moves [from, to). The two sides of a run may overlap.
///   errors   canceled, backend_failed (the driver refuses a copy)
[[nodiscard]] Result<void> move_pages(const Move& move, PagePosition from, PagePosition to);

/// Where the first byte of [from, to) is written; null if nothing is, or if it is a GPU's.
[[nodiscard]] const std::byte* first_target(const headrace_prepare_v1& request, PagePosition from,
                                            PagePosition to);

}  // namespace headrace::local
