// SPDX-License-Identifier: Apache-2.0
// The caller's handle on a request.
#include <headrace/request.hpp>

#include "engine/engine.hpp"
#include "memory/page_list.hpp"

#include <array>

namespace headrace {

/// Shared by the copies of one Request; the last to go abandons the core, which lives on until its memory is quiet.
struct Request::State {
  explicit State(std::shared_ptr<engine::RequestCore> c) : core(std::move(c)) {}
  ~State() { core->abandon(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::shared_ptr<engine::RequestCore> core;
};

std::string_view state_name(RequestState state) noexcept {
  constexpr std::array<std::string_view, 7> names{"prepared", "posted", "canceling", "done", "failed", "canceled", "captured"};
  return names[static_cast<std::size_t>(state)];
}

namespace {

PageSelection selection(const PageList::State& list, const std::vector<std::uint32_t>& indices) {
  return {list.region_of, list.offsets, list.lengths, list.base_offset, list.stride_bytes, list.page_bytes, indices, list.shape ? &*list.shape : nullptr};
}

Error at(std::uint64_t page, Error error) {
  error.page = page;
  return error;
}

Result<void> check_plan(engine::RequestPlan& plan, bool overlap) {
  if (plan.local->life || plan.local->far_side) return make_error(Code::invalid_argument, "the local list was prepared for peer {}: prepare it without a peer", plan.local->peer);
  if (!plan.remote->life && !plan.remote->far_side) {
    return make_error(Code::invalid_argument, "the remote list was prepared without a peer: name one, or this agent itself for a transfer to oneself");
  }
  const PageSelection ours = selection(*plan.local, plan.local_index);
  const PageSelection theirs = selection(*plan.remote, plan.remote_index);
  const auto [differs, bytes] = compare_lengths(ours, theirs, plan.count);
  if (differs) {
    return at(*differs, make_error(Code::invalid_argument, "page {} has {} bytes here and {} bytes at the far side: pages that go together are of one length", *differs, ours.length(*differs), theirs.length(*differs)));
  }
  plan.bytes = bytes;
  HEADRACE_TRY(grid, pair_shapes(ours.shape, theirs.shape));
  plan.grid = grid;
  if (!overlap) return {};
  if (const auto pages = find_overlap(plan.op == Op::read ? ours : theirs, plan.count)) {
    if (pages->first == pages->second) {
      return at(pages->first, make_error(Code::invalid_argument, "page {} of the destination overlaps itself: its view, {}, names some bytes twice, so its strides are too short", pages->first,
                                         (plan.op == Op::read ? ours : theirs).shape->described()));
    }
    return at(pages->second, make_error(Code::invalid_argument, "pages {} and {} of the destination overlap: what ends up there would be a matter of chance. Write them in two requests, one after the other", pages->first, pages->second));
  }
  return {};
}

}  // namespace

Result<Request> make_public_request(const std::shared_ptr<engine::Engine>& engine, engine::RequestPlan plan) {
  HEADRACE_TRY_VOID(engine->usable());
  HEADRACE_TRY_VOID(check_plan(plan, engine->checks_overlap()));
  HEADRACE_TRY(core, engine->make_request(std::move(plan)));
  return Request(std::make_shared<Request::State>(std::move(core)));
}

Status Request::post() { return state_->core->post(nullptr); }
Status Request::post(const PostOptions& options) { return state_->core->post(&options); }
RequestState Request::poll() { return state_->core->poll(); }
RequestState Request::state() const { return state_->core->state(); }
Status Request::wait(Timeout timeout) { return state_->core->wait(timeout); }
void Request::cancel() { state_->core->cancel(); }
Result<void> Request::set_indices(const PageIndices& indices, void* stream) { return state_->core->set_indices(indices, stream); }
Result<std::uint64_t> Request::check() { return state_->core->check(); }
Error Request::error() const { return state_->core->error(); }
RequestTimes Request::times() const { return state_->core->times(); }
std::string Request::explain() const { return state_->core->explain(); }
std::string Request::backend() const { return state_->core->backend(); }
Result<CostEstimate> Request::cost() const { return state_->core->cost(); }
void Request::on_done(std::function<void(Status)> done) { state_->core->on_done(std::move(done)); }
Result<int> Request::event_fd() { return state_->core->event_fd(); }
Op Request::op() const { return state_->core->plan().op; }
std::uint64_t Request::pages() const { return state_->core->plan().count; }
std::uint64_t Request::bytes() const { return state_->core->plan().bytes; }
std::string_view Request::peer() const { return state_->core->plan().remote->peer; }

}  // namespace headrace
