// SPDX-License-Identifier: Apache-2.0
// A request that threads copy.
//
// A small post is carried out where it is posted. A large one is cut into chunks, which threads of the host's
// pool and threads that poll claim one by one. Every byte is given back exactly once, moved or not, so
// exactly one thread finishes the last chunk and completes the post.
#pragma once

#include "local/move_pages.hpp"
#include "local/request.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>

namespace headrace::local {

/// Counted: the host holds one reference until `release`, each task in the pool another.
class CopyRequest final : public Request {
 public:
  CopyRequest(Instance& instance, const headrace_prepare_v1& args);

  [[nodiscard]] Status post(const headrace_post_v1& args) override;
  /// Moves one chunk; false if none was left to claim.
  bool poll() override { return work_on_chunk(); }
  void cancel() override;
  void release() override { unref(); }
  /// Finds this request a thread of the pool, or does a chunk here. False: nothing is left to do here.
  bool rescue();

  [[nodiscard]] Result<bool> capture(const headrace_capture_v1& /*args*/) override { return no_stream(); }
  void end_capture() override {}
  [[nodiscard]] Result<void> set_indices(const headrace_indices_v1& /*args*/) override { return no_stream(); }
  [[nodiscard]] Result<std::uint64_t> check() override { return no_stream(); }

  void ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  struct Chunk {
    PagePosition from;
    PagePosition to;
    std::uint64_t bytes = 0;
    bool move = true;  ///< false: only to be given back
  };

  ~CopyRequest() override = default;

  [[nodiscard]] static Error no_stream();
  void begin_chunks();
  bool claim(Chunk& chunk);
  bool work_on_chunk(NearMemory* thread = nullptr);
  void give_back(const Chunk& chunk, Result<void> moved);
  void drain();
  void get_help();
  bool submit_helper();
  static void help(CopyRequest* request);
  [[nodiscard]] Move move() const { return {&args_, mode_, &stopped_}; }

  Instance& instance_;
  const headrace_prepare_v1 args_;
  const CopyMode mode_;
  const std::uint64_t chunk_bytes_;  ///< at most; less where pages are tiny, since each costs by itself
  std::atomic<std::uint32_t> references_{1};

  std::uint64_t token_ = 0;  // of the present post
  std::atomic<bool> stopped_{false};

  std::mutex mutex_;
  bool active_ = false;           // a post has chunks that are not finished
  PagePosition next_;             // where the next chunk begins
  std::uint64_t unclaimed_ = 0;   // bytes
  std::uint64_t unfinished_ = 0;  // bytes
  Result<void> outcome_;          // the first thing that went wrong
};

}  // namespace headrace::local
