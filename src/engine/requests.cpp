// SPDX-License-Identifier: Apache-2.0
#include "engine/requests.hpp"

#include "base/errors.hpp"
#include "engine/plan_check.hpp"

#include <algorithm>
#include <thread>

namespace headrace::engine {
namespace {

constexpr auto closing_patience = std::chrono::seconds(5);

/// Why a request of this list cannot be made.
Error invalid_list(const PageList::State& list) {
  if (list.life && list.life->fate.load() != Fate::alive)
    return make_error(Code::peer_lost,
                      "peer {} is gone or has restarted: import its metadata and prepare its pages again",
                      list.peer);
  return make_error(Code::not_found,
                    "a region of the {} page list is registered no longer: prepare the list again",
                    list.life ? "remote" : "local");
}

}  // namespace

Result<std::shared_ptr<RequestCore>> Requests::make(RequestPlan plan) {
  const Call call(context_.calls);
  HEADRACE_TRY_VOID(call.admitted());
  HEADRACE_TRY_VOID(complete_plan(plan));
  if (check_overlap_) HEADRACE_TRY_VOID(check_overlap(plan));
  for (const PageListState* list : {&plan.local, &plan.remote})
    if (!context_.lists.still_valid(**list).ok()) return invalid_list(**list);
  HEADRACE_TRY(slot, slots_.take());
  auto core =
      RequestCore::make(engine_.lock(), context_, std::move(slot), std::move(plan), next_id_.fetch_add(1));
  HEADRACE_TRY_VOID(core->bind());
  const std::lock_guard lock(mutex_);
  known_.insert(core.get());
  return core;
}

Result<std::shared_ptr<Transfer>> Requests::make_of_parts(std::vector<RequestPlan> plans) {
  HEADRACE_TRY_VOID(context_.calls.usable());
  if (plans.empty())
    return make_error(Code::invalid_argument,
                      "the request has no parts: give page lists of at least one peer");
  if (plans.size() == 1) {
    HEADRACE_TRY(core, make(std::move(plans.front())));
    return std::shared_ptr<Transfer>(std::move(core));
  }
  HEADRACE_TRY_VOID(check_peers_differ(plans));
  if (check_overlap_ && plans.front().op == Op::read) HEADRACE_TRY_VOID(check_overlap_of_parts(plans));
  std::vector<std::shared_ptr<RequestCore>> parts;
  for (RequestPlan& plan : plans) {
    auto core = make(std::move(plan));
    if (!core)
      return std::move(core).error().within(fmt::format("part {} of {}", parts.size(), plans.size()));
    parts.push_back(std::move(*core));
  }
  return std::shared_ptr<Transfer>(RequestGroup::make(engine_.lock(), context_, std::move(parts)));
}

void Requests::completed(std::uint64_t token, Status status, std::string_view text) {
  if (RequestCore* const core = slots_.complete(token); core != nullptr)
    core->completed(status, text);
  else
    context_.counters.completions_ignored.add();
}

void Requests::forget(RequestCore& core, RequestPlan& plan) {
  {
    const std::lock_guard lock(mutex_);
    known_.erase(&core);
  }
  index_pool_.give(std::move(plan.local_index));
  index_pool_.give(std::move(plan.remote_index));
}

void Requests::count_end(const RequestPlan& plan, Status status, std::uint64_t took_ns) const {
  EngineCounters& counters = context_.counters;
  if (!status.ok()) {
    (status.code == Code::canceled ? counters.canceled : counters.failed).add();
    return;
  }
  counters.done.add();
  counters.request_ns.record(took_ns);
  counters.pages.add(plan.count);
  (plan.op == Op::read ? counters.read_bytes : counters.written_bytes).add(plan.bytes);
}

// ------------------------------------------------------------------ closing

std::vector<std::shared_ptr<RequestCore>> Requests::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<RequestCore>> all;
  all.reserve(known_.size());
  for (RequestCore* core : known_)
    if (auto alive = core->weak_from_this().lock()) all.push_back(std::move(alive));
  return all;
}

void Requests::cancel_all() {
  const auto requests = all();
  for (const auto& core : requests) core->cancel();
  const Deadline deadline = context_.progress.deadline_in(closing_patience);
  for (const auto& core : requests)
    (void)context_.progress.wait([&] { return core->ended(); }, [&] { return core->help(); }, deadline);
}

bool Requests::release_all() {
  bool quiet = true;
  for (const auto& core : all()) quiet = core->release() && quiet;
  return quiet;
}

/// The deletion of a request gives a backend its own back. A request that other threads hold has been
/// released.
void Requests::end_what_was_let_go() {
  const auto some_are_left = [this] {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(known_, [](RequestCore* core) { return core->weak_from_this().expired(); });
  };
  const Deadline deadline = context_.progress.deadline_in(closing_patience);
  while (some_are_left() && !deadline.expired(context_.progress.clock())) {
    (void)context_.progress.poll();
    std::this_thread::yield();
  }
  {
    const std::lock_guard lock(let_go_mutex_);
    nobody_drives_ = true;
  }
  (void)context_.progress.poll();
}

void Requests::let_go_later(std::function<void()> end) {
  {
    const std::lock_guard lock(let_go_mutex_);
    if (!nobody_drives_) return context_.progress.defer(std::move(end));
  }
  end();
}

}  // namespace headrace::engine
