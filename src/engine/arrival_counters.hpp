// SPDX-License-Identifier: Apache-2.0
// Counters of arrivals: how many posts of peers, and of this agent to itself, have arrived with an immediate.
#pragma once

#include <headrace/request.hpp>

#include "base/log.hpp"
#include "base/once_a_second.hpp"
#include "base/unique_fd.hpp"
#include "engine/call_gate.hpp"
#include "engine/callback_queue.hpp"
#include "engine/progress.hpp"
#include "gpu/gpu_word.hpp"
#include "gpu/gpus.hpp"
#include "telemetry/telemetry.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::engine {

/// Our end of a pair of sockets; the caller has the other. A caller may close its end at any time and tells
/// nobody: a socket shows that, an eventfd would not.
class CounterDescriptor {
 public:
  CounterDescriptor() = default;
  /// The caller's end, which is not readable yet.
  [[nodiscard]] Result<UniqueFd> open();
  /// Makes the caller's end readable, for good.
  void signal() const noexcept;
  /// Whether the caller has closed its end.
  [[nodiscard]] bool given_up() const noexcept;

 private:
  UniqueFd ours_;
};

/// The count of one immediate. It only grows.
class ArrivalCount {
 public:
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_acquire); }
  /// The count itself: a word in host memory that grows.
  [[nodiscard]] const std::atomic<std::uint64_t>& word() const { return value_; }

 private:
  friend class ArrivalCounters;

  /// Who is told once the count is at least that.
  struct Watch {
    std::uint64_t at_least = 0;
    std::function<void()> reached;  ///< null: `descriptor` is signaled
    CounterDescriptor descriptor;
  };

  alignas(64) std::atomic<std::uint64_t> value_{0};  ///< callers poll it
  /// An arrival that brings the count to this tells someone: the smallest `at_least` of `watches_`, 0 while
  /// GPUs have words.
  alignas(64) std::atomic<std::uint64_t> next_watch_{UINT64_MAX};
  std::mutex mutex_;
  std::vector<Watch> watches_;
  std::vector<gpu::GpuWord*> words_;  ///< each until its owner releases it
};

/// The counts of an agent. A count begins with its first arrival, or when it is opened.
class ArrivalCounters {
 public:
  /// Counts of one peer's that no caller has opened, at most: peers choose the immediates.
  static constexpr std::size_t most_unopened = 16384;

  ArrivalCounters(CallGate& calls, Progress& progress, CallbackQueue& callbacks, Telemetry& telemetry,
                  const Log& log, gpu::GpuSource gpus = gpu::GpuSource::installed())
      : calls_(calls),
        progress_(progress),
        callbacks_(callbacks),
        log_(log),
        gpus_(std::move(gpus)),
        dropped_(telemetry.counter("counters.dropped")) {}

  /// From any thread, also inside a backend's call. The bytes of the posts can be read.
  /// `peer`: the sender, empty for this agent itself.
  void add(Immediate key, std::uint64_t amount, std::string_view peer = {});
  /// False: there is no such count yet, and nothing has been added.
  [[nodiscard]] bool add_known(Immediate key, std::uint64_t amount);
  /// Drops the counts that came from this peer and that no caller has opened.
  void forget(std::string_view peer);

  [[nodiscard]] Result<std::shared_ptr<ArrivalCount>> open(Immediate key);
  /// Returns ok, timed_out, or canceled (the agent was closed).
  [[nodiscard]] Status wait(const ArrivalCount& count, std::uint64_t at_least, Timeout timeout);
  /// Calls `reached` once, on the callback thread.
  void on_reached(ArrivalCount& count, std::uint64_t at_least, std::function<void()> reached);
  /// A descriptor that becomes readable once the count is at least that, or the agent is closed; the
  /// caller's.
  [[nodiscard]] Result<int> event_fd(const std::shared_ptr<ArrivalCount>& count, std::uint64_t at_least);
  /// A word in this GPU's memory that follows the count until the last owner releases it, or the agent is
  /// closed. Its memory is freed on the thread of that release, which may have to wait for the GPU's kernels.
  ///   errors   not_supported (no driver), invalid_argument (no such GPU, the agent is closed), exhausted
  [[nodiscard]] Result<std::shared_ptr<const gpu::GpuWord>> gpu_word(
      const std::shared_ptr<ArrivalCount>& count, int device);
  /// Signals every descriptor: what waits for one sees that the agent is closed.
  void close();

 private:
  struct Entry {
    std::shared_ptr<ArrivalCount> count = std::make_shared<ArrivalCount>();
    bool opened = false;
    std::string peer;  ///< from whom it came first, until it is opened
  };
  static std::uint64_t packed(Immediate key) { return std::uint64_t{key.scope} << 32 | key.value; }
  [[nodiscard]] std::shared_ptr<ArrivalCount> find(Immediate key);
  [[nodiscard]] std::shared_ptr<ArrivalCount> find_or_make(Immediate key, std::string_view peer);
  void opened(Entry& entry);
  void raise(ArrivalCount& count, std::uint64_t amount);
  void watch(ArrivalCount& count, ArrivalCount::Watch watch);
  void tell(ArrivalCount& count, std::uint64_t value);
  void descriptor_made(const std::shared_ptr<ArrivalCount>& count);
  static std::size_t drop_given_up(ArrivalCount& count);
  void raise_words(ArrivalCount& count, std::uint64_t value);
  void drop(Immediate key, std::uint64_t amount, std::string_view peer);

  CallGate& calls_;
  Progress& progress_;
  CallbackQueue& callbacks_;
  const Log& log_;
  const gpu::GpuSource gpus_;
  TelemetryCounter& dropped_;
  OnceASecond drops_;

  std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> unopened_;  // of each peer, where there are any

  static constexpr std::size_t least_between_looks = 8;
  std::mutex with_descriptors_mutex_;
  std::set<std::shared_ptr<ArrivalCount>> with_descriptors_;
  std::size_t until_look_ = least_between_looks;  ///< further descriptors until those given up are closed
};

}  // namespace headrace::engine
