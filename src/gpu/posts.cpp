// SPDX-License-Identifier: Apache-2.0
#include "gpu/posts.hpp"

#include "base/clock.hpp"
#include "base/start_thread.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace headrace::gpu {
namespace {

// A kernel that faults writes no word: the driver is asked now and then. Asking costs microseconds, looking
// nanoseconds.
constexpr std::uint32_t looks_before_asking = 4096;

// Short rests cost CPU for as long as a post lasts. So one that lasts may end a hundredth later than it
// could.
constexpr auto shortest_rest = std::chrono::microseconds(20);
constexpr auto longest_rest = std::chrono::microseconds(1000);
constexpr std::uint32_t looks_at_each_rest = 64;
constexpr std::uint32_t looks_before_waking = 1024;  // the host, which asks the driver

std::chrono::microseconds rest_after(std::uint32_t looks) {
  return std::min(shortest_rest * (1 + looks / looks_at_each_rest), longest_rest);
}

}  // namespace

Posts::~Posts() {
  watcher_.request_stop();
  changed_.notify_all();
}

void Posts::add(Post& post) {
  const std::scoped_lock lock(mutex_);
  in_flight_.push_back(&post);
  any_.store(true, std::memory_order_relaxed);
  looks_of_watcher_ = 0;
  if (armed_) start_watching();
}

bool Posts::remove(Post& post) {
  const std::scoped_lock lock(mutex_);
  return std::erase(in_flight_, &post) != 0;
}

bool Posts::poll(Post& post) {
  {
    const std::scoped_lock lock(mutex_);
    const auto place = std::ranges::find(in_flight_, &post);
    if (place == in_flight_.end()) return false;
    if (!post.poll_done()) return now_ns() < post.look_until_ns();
    in_flight_.erase(place);
  }
  post.ended({});
  return false;
}

std::vector<Post*> Posts::take_ended() {
  const auto ended =
      std::ranges::stable_partition(in_flight_, [](const Post* post) { return !post->poll_done(); });
  std::vector<Post*> taken(ended.begin(), ended.end());
  in_flight_.erase(ended.begin(), ended.end());
  return taken;
}

std::uint32_t Posts::tell(const std::vector<Post*>& ended) {
  for (Post* const post : ended) post->ended({});
  return static_cast<std::uint32_t>(ended.size());
}

std::uint32_t Posts::progress() {
  if (!any_.load(std::memory_order_relaxed)) return 0;
  std::vector<Post*> ended;
  bool ask = false;
  {
    const std::scoped_lock lock(mutex_);
    any_.store(!in_flight_.empty(), std::memory_order_relaxed);
    if (in_flight_.empty()) return 0;
    ended = take_ended();
    idle_looks_ = ended.empty() ? idle_looks_ + 1 : 0;
    ask = idle_looks_ == looks_before_asking;
    if (ask) idle_looks_ = 0;
  }
  return ask ? end_failed() : tell(ended);
}

std::uint32_t Posts::end_failed() {
  std::vector<std::pair<Post*, Error>> failed;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(in_flight_, [&](Post* post) {
      if (!post->ends_with_gpu()) return false;
      const auto idle = post->gpu().stream.poll_idle();
      if (idle || post->poll_done()) return false;
      failed.emplace_back(post, Error{Code::backend_failed, idle.error().message});
      return true;
    });
  }
  for (auto& [post, why] : failed) post->ended(std::move(why));
  return static_cast<std::uint32_t>(failed.size());
}

bool Posts::any_ended() const {
  return std::ranges::any_of(in_flight_, [](const Post* post) { return post->poll_done(); });
}

std::uint32_t Posts::arm(bool on) {
  std::vector<Post*> ended;
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
  if (!watcher_.joinable()) {
    auto thread =
        start_thread<std::jthread>("headrace-gpu", [this](const std::stop_token& stop) { watch(stop); });
    if (thread) watcher_ = std::move(*thread);  // else the next post tries again, and polls see the end
  }
  changed_.notify_all();
}

void Posts::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return armed_ && !in_flight_.empty(); })) {
    const bool ended = any_ended();
    looks_of_watcher_ = ended ? 1 : looks_of_watcher_ + 1;
    // Rings for ends, and now and then so that the host looks for failures.
    if (ended || looks_of_watcher_ % looks_before_waking == 0) {
      idle_looks_ = looks_before_asking - 1;
      ring_();
    }
    (void)changed_.wait_for(lock, stop, rest_after(looks_of_watcher_),
                            [this] { return looks_of_watcher_ == 0; });
  }
}

}  // namespace headrace::gpu
