// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of a part of a request: mapped memory by copying, other memory by attach, whichever each
// page needs.
#pragma once

#include "backends/shm/copy.hpp"
#include "host_link/post.hpp"
#include "memory/page_cursor.hpp"

#include <headrace/result.hpp>

#include <atomic>

namespace headrace::shm {

class Link;

using host_link::Outcome;

struct Transfer {
  const headrace_prepare_v1* request = nullptr;
  Link* link = nullptr;  ///< nullptr: both sides are ours
  CopyMode mode = CopyMode::cached;
  const std::atomic<bool>* stop = nullptr;  ///< looked at now and then; the outcome is then canceled
};

/// Moves [from, to). Regions are found live before and after their bytes were moved, or the outcome is
/// not_found.
[[nodiscard]] Outcome move_part(const Transfer& transfer, PagePosition from, PagePosition to);

/// Where the first byte of [from, to) is written; null if that is not mapped in this process.
[[nodiscard]] const std::byte* first_target(const headrace_prepare_v1& request, PagePosition from,
                                            PagePosition to);

}  // namespace headrace::shm
