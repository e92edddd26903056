// SPDX-License-Identifier: Apache-2.0
// What the caller asked for; fixed at make_request.
#pragma once

#include <headrace/request.hpp>

#include "engine/page_list_state.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::engine {

using PageListState = std::shared_ptr<const PageList::State>;

struct RequestPlan {
  Op op = Op::read;
  PageListState local;
  PageListState remote;
  std::vector<std::uint32_t> local_index;  ///< empty: the whole list in order
  std::vector<std::uint32_t> remote_index;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::optional<headrace_page_grid_v1> grid;  ///< what each page consists of on both sides; none: one stretch
  std::vector<std::string> backends;          ///< only these; empty: all
  Timeout timeout;
};

/// What a post is likely to take by a backend's estimate. Finding a page costs time for each page, and for
/// each run of a view.
[[nodiscard]] inline double expected_ns(const headrace_cost_v1& cost, const RequestPlan& plan) {
  const double stretches =
      static_cast<double>(plan.count) * static_cast<double>(plan.grid ? plan.grid->runs : 1);
  return cost.fixed_ns + cost.ns_per_page * stretches +
         static_cast<double>(plan.bytes) * 1e9 / cost.bytes_per_second;
}

}  // namespace headrace::engine
