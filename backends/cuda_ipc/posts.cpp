// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/posts.hpp"

#include "backends/cuda_ipc/request.hpp"
#include "base/clock.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace headrace::cuda_ipc {
namespace {

// A kernel that faults writes no word: the driver is asked now and then. Asking costs microseconds, looking
// nanoseconds.
constexpr std::uint32_t looks_before_asking = 4096;
constexpr auto watch_every = std::chrono::microseconds(20);

}  // namespace

Posts::~Posts() {
  watcher_.request_stop();
  changed_.notify_all();
}

void Posts::add(Request& request) {
  const std::scoped_lock lock(mutex_);
  in_flight_.push_back(&request);
  if (armed_) start_watching();
}

bool Posts::poll(Request& request) {
  {
    const std::scoped_lock lock(mutex_);
    const auto place = std::ranges::find(in_flight_, &request);
    if (place == in_flight_.end()) return false;
    if (!request.poll_done()) return now_ns() < request.look_until_ns();
    in_flight_.erase(place);
  }
  request.ended({});
  return false;
}

std::vector<Request*> Posts::take_ended() {
  const auto ended =
      std::ranges::stable_partition(in_flight_, [](const Request* request) { return !request->poll_done(); });
  std::vector<Request*> taken(ended.begin(), ended.end());
  in_flight_.erase(ended.begin(), ended.end());
  return taken;
}

std::uint32_t Posts::tell(const std::vector<Request*>& ended) {
  for (Request* const request : ended) request->ended({});
  return static_cast<std::uint32_t>(ended.size());
}

std::uint32_t Posts::progress() {
  std::vector<Request*> ended;
  bool ask = false;
  {
    const std::scoped_lock lock(mutex_);
    if (in_flight_.empty()) return 0;
    ended = take_ended();
    idle_looks_ = ended.empty() ? idle_looks_ + 1 : 0;
    ask = idle_looks_ == looks_before_asking;
    if (ask) idle_looks_ = 0;
  }
  return ask ? end_failed() : tell(ended);
}

std::uint32_t Posts::end_failed() {
  std::vector<std::pair<Request*, std::string>> failed;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(in_flight_, [&](Request* request) {
      if (!request->ends_with_gpu()) return false;
      const auto idle = request->gpu().stream.poll_idle();
      if (idle || request->poll_done()) return false;
      failed.emplace_back(request, idle.error().message);
      return true;
    });
  }
  for (const auto& [request, text] : failed) request->ended({{Code::backend_failed}, text});
  return static_cast<std::uint32_t>(failed.size());
}

bool Posts::any_ended() const {
  return std::ranges::any_of(in_flight_, [](const Request* request) { return request->poll_done(); });
}

std::uint32_t Posts::arm(bool on) {
  std::vector<Request*> ended;
  {
    const std::scoped_lock lock(mutex_);
    armed_ = on;
    if (!on) return 0;
    ended = take_ended();
    if (!in_flight_.empty()) start_watching();
  }
  return tell(ended);
}

/// With mutex_ held. Agents that post nothing to a GPU pay for no thread, nor for waking it at each sleep of
/// theirs.
void Posts::start_watching() {
  if (!watcher_.joinable()) watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  changed_.notify_all();
}

void Posts::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  std::uint32_t looks = 0;
  while (changed_.wait(lock, stop, [this] { return armed_ && !in_flight_.empty(); })) {
    // Rings for ends, and now and then so that the host looks for failures.
    if (any_ended() || ++looks % looks_before_asking == 0) {
      idle_looks_ = looks_before_asking - 1;
      ring_();
    }
    lock.unlock();
    std::this_thread::sleep_for(watch_every);
    lock.lock();
  }
}

}  // namespace headrace::cuda_ipc
