// SPDX-License-Identifier: Apache-2.0
// The caller's handle of a request.
#include <headrace/request.hpp>

#include "engine/engine.hpp"
#include "engine/request_group.hpp"
#include "memory/page_list.hpp"

#include <algorithm>
#include <array>

namespace headrace {

/// Shared by the copies of one Request. The last copy cancels what is in flight, which lives on until its
/// memory is quiet.
struct Request::State {
  explicit State(std::shared_ptr<engine::Transfer> t) : transfer(std::move(t)) {}
  ~State() { transfer->cancel(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::shared_ptr<engine::Transfer> transfer;
};

std::string_view state_name(RequestState state) noexcept {
  constexpr std::array<std::string_view, 7> names{"prepared", "posted",   "canceling", "done",
                                                  "failed",   "canceled", "captured"};
  return names[static_cast<std::size_t>(state)];
}

namespace {

PageSelection selection(const PageList::State& list, const std::vector<std::uint32_t>& indices) {
  return {list.region_of,    list.offsets,    list.lengths, list.base_offset,
          list.stride_bytes, list.page_bytes, indices,      list.shape ? &*list.shape : nullptr};
}

Error at(std::uint64_t page, Error error) {
  error.page = page;
  return error;
}

Result<void> check_plan(engine::RequestPlan& plan, bool overlap) {
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
  if (!overlap) return {};
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

/// Finds pages of several parts that are read to one place, which a check of single parts cannot see.
Result<void> check_overlap_of_parts(std::span<const engine::RequestPlan> plans) {
  std::vector<PageStretch> destinations;
  for (std::size_t part = 0; part < plans.size(); ++part) {
    const engine::RequestPlan& plan = plans[part];
    add_stretches(selection(*plan.local, plan.local_index), plan.count, plan.local->region_ids,
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

Result<void> check_peers_differ(std::span<const engine::RequestPlan> plans) {
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

Result<std::shared_ptr<engine::RequestCore>> make_core(engine::Engine& engine, engine::RequestPlan plan) {
  HEADRACE_TRY_VOID(check_plan(plan, engine.checks_overlap()));
  return engine.make_request(std::move(plan));
}

}  // namespace

Result<Request> make_public_request(const std::shared_ptr<engine::Engine>& engine, engine::RequestPlan plan) {
  HEADRACE_TRY_VOID(engine->usable());
  HEADRACE_TRY(core, make_core(*engine, std::move(plan)));
  return Request(std::make_shared<Request::State>(std::move(core)));
}

Result<Request> make_public_request(const std::shared_ptr<engine::Engine>& engine,
                                    std::vector<engine::RequestPlan> plans) {
  HEADRACE_TRY_VOID(engine->usable());
  if (plans.empty())
    return make_error(Code::invalid_argument,
                      "the request has no parts: give page lists of at least one peer");
  if (plans.size() == 1) return make_public_request(engine, std::move(plans.front()));
  HEADRACE_TRY_VOID(check_peers_differ(plans));
  if (engine->checks_overlap() && plans.front().op == Op::read)
    HEADRACE_TRY_VOID(check_overlap_of_parts(plans));
  std::vector<std::shared_ptr<engine::RequestCore>> parts;
  for (engine::RequestPlan& plan : plans) {
    auto core = make_core(*engine, std::move(plan));
    if (!core)
      return std::move(core).error().within(fmt::format("part {} of {}", parts.size(), plans.size()));
    parts.push_back(std::move(*core));
  }
  return Request(std::make_shared<Request::State>(engine::RequestGroup::make(engine, std::move(parts))));
}

Status Request::post() { return state_->transfer->post(nullptr); }
Status Request::post(const PostOptions& options) { return state_->transfer->post(&options); }
RequestState Request::poll() { return state_->transfer->poll(); }
RequestState Request::state() const { return state_->transfer->state(); }
Status Request::wait(Timeout timeout) { return state_->transfer->wait(timeout); }
void Request::cancel() { state_->transfer->cancel(); }
Result<void> Request::set_indices(const PageIndices& indices, void* stream) {
  return state_->transfer->set_indices(indices, stream);
}
Result<std::uint64_t> Request::check() { return state_->transfer->check(); }
Error Request::error() const { return state_->transfer->error(); }
RequestTimes Request::times() const { return state_->transfer->times(); }
std::string Request::explain() const { return state_->transfer->explain(); }
std::string Request::backend() const { return state_->transfer->backend(); }
Result<CostEstimate> Request::cost() const { return state_->transfer->cost(); }
std::vector<PartInfo> Request::parts() const { return state_->transfer->parts(); }
void Request::on_done(std::function<void(Status)> done) { state_->transfer->on_done(std::move(done)); }
Result<int> Request::event_fd() { return state_->transfer->event_fd(); }
Op Request::op() const { return state_->transfer->op(); }
std::uint64_t Request::pages() const { return state_->transfer->pages(); }
std::uint64_t Request::bytes() const { return state_->transfer->bytes(); }
std::string_view Request::peer() const { return state_->transfer->peer(); }

}  // namespace headrace
