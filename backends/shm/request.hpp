// SPDX-License-Identifier: Apache-2.0
// One prepared request and the life of its posts.
//
// A small post is carried out where it is posted. A large one is cut into chunks that whoever has time
// claims: threads of the host's pool, and the caller that polls. Who finishes the last chunk completes the
// post; since every byte is given back exactly once, moved or not, that is exactly one thread.
#pragma once

#include "backends/shm/instance.hpp"
#include "backends/shm/transfer.hpp"
#include "host_link/post_message.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace headrace::shm {

class Link;

/// Counted: the host holds one reference until `release`, each task in the pool and each list of the link
/// another.
class Request final : public host_link::Post {
 public:
  ///   errors   not_supported (a region can be reached neither by mapping nor by attach), peer_lost
  [[nodiscard]] static Result<Request*> prepare(Instance& instance, const headrace_prepare_v1& args,
                                                std::shared_ptr<Link> link);

  [[nodiscard]] Status post(const headrace_post_v1& args);
  /// Moves one chunk; false if none was left to claim.
  bool poll();
  void cancel();

  /// ... as soon as no thread is inside a chunk.
  void end_early(const Outcome& outcome) override;
  /// For the progress thread: finds this request a thread of the pool, or does a chunk itself. False: nothing
  /// is left to do.
  bool rescue();

 private:
  enum class State : std::uint8_t { idle, active };

  Request(Instance& instance, const headrace_prepare_v1& args, std::shared_ptr<Link> link);
  ~Request() override = default;

  struct Chunk {
    PagePosition from;
    PagePosition to;
    std::uint64_t bytes = 0;
    bool move = true;  ///< false: only to be given back
  };

  [[nodiscard]] Outcome find_paths();
  [[nodiscard]] Transfer transfer();
  void begin();
  void begin_chunks();
  [[nodiscard]] bool can_relay() const;
  [[nodiscard]] Outcome move(const Chunk& chunk, bool through_lane);
  void stop_relaying();
  bool claim(Chunk& chunk, bool through_lane);
  bool work_on_chunk(NearMemory* thread = nullptr);
  void drain();
  void stop(const Outcome& outcome);
  void get_help();
  bool submit_helper();
  static void help(Request* request);
  void finish(Outcome outcome, bool counted);

  Instance& instance_;
  const headrace_prepare_v1 args_;
  const std::shared_ptr<Link> link_;
  const CopyMode mode_;
  const std::uint64_t chunk_bytes_;  ///< at most; less where pages are tiny, since each costs by itself
  bool paths_known_ = false;         // of all remote regions

  std::uint64_t token_ = 0;  // of the present post
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint32_t> helping_{0};    // threads of the pool that are at it
  std::atomic<std::uint64_t> helped_ns_{0};  // when the last of them left, or the post began
  std::atomic<bool> relaying_{false};        // this post reads through lanes: threads of the pool do it alone
  host_link::PostMessage message_;

  std::mutex mutex_;
  State state_ = State::idle;
  PagePosition next_;             // where the next chunk begins
  std::uint64_t unclaimed_ = 0;   // bytes
  std::uint64_t unfinished_ = 0;  // bytes
  Outcome outcome_;               // the first thing that went wrong
};

}  // namespace headrace::shm
