// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of a part of a request: mapped memory by copying, other memory by attach, whichever each
// page needs.
#pragma once

#include "host_link/post.hpp"
#include "memory/page_copy.hpp"
#include "memory/page_cursor.hpp"

#include <headrace/result.hpp>

#include <atomic>
#include <span>

namespace headrace::shm {

class Link;

using host_link::Outcome;

struct Transfer {
  const headrace_prepare_v1* request = nullptr;
  Link* link = nullptr;  ///< nullptr: no link can be lost, as in tests of lanes
  CopyMode mode = CopyMode::cached;
  const std::atomic<bool>* stop = nullptr;  ///< looked at now and then; the outcome is then canceled
};

/// Moves [from, to). Regions are found live before and after their bytes were moved, or the outcome is
/// not_found.
[[nodiscard]] Outcome move_part(const Transfer& transfer, PagePosition from, PagePosition to);

/// canceled if the post was stopped, or how the link was lost.
[[nodiscard]] Outcome check_interrupted(const Transfer& transfer);
/// not_found if a region of `runs` is not registered any more, invalid_argument if it may not be written.
[[nodiscard]] Outcome check_live(const Transfer& transfer, std::span<const PageRun> runs);

/// Where the first byte of [from, to) is written; null if that is not mapped in this process.
[[nodiscard]] const std::byte* first_target(const headrace_prepare_v1& request, PagePosition from,
                                            PagePosition to);

}  // namespace headrace::shm
