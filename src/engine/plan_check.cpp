// SPDX-License-Identifier: Apache-2.0
#include "engine/plan_check.hpp"

#include "base/errors.hpp"
#include "memory/page_list.hpp"

#include <algorithm>
#include <vector>

namespace headrace::engine {
namespace {

PageSelection selection(const PageList::State& list, const std::vector<std::uint32_t>& indices) {
  return {list.columns.view(indices), list.shape ? &*list.shape : nullptr};
}

Error at(std::uint64_t page, Error error) {
  error.page = page;
  return error;
}

/// That the side that the bytes come to is not registered read-only.
Result<void> check_writable(const RequestPlan& plan) {
  const PageList::State& target = plan.op == Op::read ? *plan.local : *plan.remote;
  const headrace_columns_v1 columns =
      target.columns.view(plan.op == Op::read ? plan.local_index : plan.remote_index);
  for (const std::uint32_t region : target.read_only_ids) {
    const auto number =
        std::ranges::find(target.columns.region_ids, region) - target.columns.region_ids.begin();
    const std::uint64_t page = first_page_in(columns, plan.count, static_cast<std::uint64_t>(number));
    if (page == no_page) continue;
    Error error = make_error(Code::invalid_argument, "page {}: region {} of {} is registered read-only: {}",
                             page, region, target.life ? "peer " + target.peer : "this agent",
                             target.life ? "only its owner can make it writable, when it registers it"
                                         : "register its memory as writable to have it written");
    error.page = page;
    return error;
  }
  return {};
}

}  // namespace

Result<void> complete_plan(RequestPlan& plan) {
  if (plan.local->life || plan.local->far_side)
    return make_error(Code::invalid_argument,
                      "the local list was prepared for peer {}: prepare it without a peer", plan.local->peer);
  if (!plan.remote->life && !plan.remote->far_side) {
    return make_error(Code::invalid_argument,
                      "the remote list was prepared without a peer: name one, or this agent itself for a "
                      "move inside the agent");
  }
  const PageSelection ours = selection(*plan.local, plan.local_index);
  const PageSelection theirs = selection(*plan.remote, plan.remote_index);
  const auto [differs, bytes] = compare_lengths(ours, theirs, plan.count);
  if (differs) {
    return at(*differs, make_error(Code::invalid_argument,
                                   "page {} has {} bytes here and {} bytes at the far side: both must have "
                                   "the same length",
                                   *differs, ours.length(*differs), theirs.length(*differs)));
  }
  plan.bytes = bytes;
  HEADRACE_TRY(grid, pair_shapes(ours.shape, theirs.shape));
  plan.grid = grid;
  return check_writable(plan);
}

Result<void> check_overlap(const RequestPlan& plan) {
  const PageSelection ours = selection(*plan.local, plan.local_index);
  const PageSelection theirs = selection(*plan.remote, plan.remote_index);
  if (const auto pages = find_overlap(plan.op == Op::read ? ours : theirs, plan.count)) {
    if (pages->first == pages->second) {
      return at(pages->first,
                make_error(Code::invalid_argument,
                           "page {} of the destination overlaps itself: its view, {}, names some bytes "
                           "twice, so its strides are too short",
                           pages->first, (plan.op == Op::read ? ours : theirs).shape->described()));
    }
    return at(pages->second,
              make_error(Code::invalid_argument,
                         "pages {} and {} of the destination overlap: the result would depend on "
                         "chance. Write them in two requests, one after the other",
                         pages->first, pages->second));
  }
  return {};
}

Result<void> check_overlap_of_parts(std::span<const RequestPlan> plans) {
  std::vector<PageStretch> destinations;
  for (std::size_t part = 0; part < plans.size(); ++part) {
    const RequestPlan& plan = plans[part];
    add_stretches(selection(*plan.local, plan.local_index), plan.count, plan.local->columns.region_ids,
                  static_cast<std::uint32_t>(part), destinations);
  }
  const auto shared = find_shared(destinations);
  if (!shared) return {};
  const auto& [one, other] = *shared;
  return at(other.page,
            make_error(Code::invalid_argument,
                       "page {} of part {} and page {} of part {} are read to one place: the result would "
                       "depend on chance. Read them in two requests, one after the other",
                       one.page, one.list, other.page, other.list));
}

Result<void> check_peers_differ(std::span<const RequestPlan> plans) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (plans[i].remote->peer != plans[j].remote->peer) continue;
      return make_error(
          Code::invalid_argument,
          "parts {} and {} are both of peer {}: put their pages in one part, so that the peer gets one "
          "notification, after all of them",
          j, i, plans[i].remote->peer);
    }
  }
  return {};
}

}  // namespace headrace::engine
