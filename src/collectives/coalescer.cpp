// SPDX-License-Identifier: Apache-2.0
#include "collectives/coalescer.hpp"

#include "base/errors.hpp"

#include <utility>

namespace headrace::collectives {
namespace {

const char* const left_meanwhile =
    "the communicator was left before end_coalescing: the calls are not issued";

/// No other thread has it, also after this one has ended: ids of threads are used again.
std::uint64_t this_thread_number() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

}  // namespace

std::shared_ptr<Work::State> Coalescer::mine() const {
  if (threads_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(this_thread_number());
  return found == kept_.end() ? nullptr : found->second.work;
}

Result<void> Coalescer::start(std::shared_ptr<Work::State> work) {
  const std::scoped_lock lock(mutex_);
  if (closed_)
    return make_error(Code::invalid_argument, "the communicator has been finalized: open another one");
  if (!kept_.try_emplace(this_thread_number(), Coalesced{std::move(work), {}}).second)
    return make_error(Code::invalid_argument,
                      "this thread has called start_coalescing already: call end_coalescing first");
  ++threads_;
  return {};
}

void Coalescer::keep(KeptCall call) {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(this_thread_number());
  if (found != kept_.end()) found->second.calls.push_back(std::move(call));
}

Result<Coalesced> Coalescer::take() {
  const std::scoped_lock lock(mutex_);
  auto node = kept_.extract(this_thread_number());
  if (node.empty())
    return make_error(Code::invalid_argument, "{}",
                      closed_ ? left_meanwhile : "this thread has not called start_coalescing");
  --threads_;
  return std::move(node.mapped());
}

void Coalescer::close() {
  std::map<std::uint64_t, Coalesced> kept;
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    kept = std::exchange(kept_, {});
    threads_ = 0;
  }
  for (const auto& [thread, coalesced] : kept)
    coalesced.work->end(make_error(Code::canceled, "{}", left_meanwhile));
}

}  // namespace headrace::collectives
