// SPDX-License-Identifier: Apache-2.0
// The work of a request: threads take piece after piece, and the thread that returns the last piece reports
// the end.
#pragma once

#include "memory/page_cursor.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace headrace::posix {

/// Its request and the tasks in the queue co-own it. A late task finds no work and ends.
///   threads  any
class Job {
 public:
  /// `prepared` and everything it points to stays until the request is released, and is not read after that.
  Job(plugin::Host host, const headrace_prepare_v1& prepared, std::uint64_t piece_bytes)
      : host_(host), args_(prepared), piece_bytes_(piece_bytes) {}

  /// The largest number of threads that can find work.
  [[nodiscard]] std::uint64_t pieces() const;

  /// Starts a post. Completes it at once if there is nothing to move. False: a post is in flight already.
  [[nodiscard]] bool begin(std::uint64_t token);
  /// Undoes `begin`. False: a thread has begun, and the post will be completed.
  [[nodiscard]] bool take_back();
  /// Moves pieces until none is left.
  void work();
  /// No further piece begins; the post is completed once no thread is inside a piece.
  void cancel();

 private:
  // Of the 1024 buffers that a call takes; a piece of small pages ends with them.
  static constexpr std::size_t runs_a_piece = 128;

  /// What stopped a request: the error at the lowest page that failed.
  struct Failure {
    Status status;
    std::string text;
  };

  std::size_t claim(std::span<PageRun> runs);
  [[nodiscard]] std::optional<Failure> move(std::span<const PageRun> runs) const;
  void give_back(std::optional<Failure> failure);

  const plugin::Host host_;
  const headrace_prepare_v1 args_;
  const std::uint64_t piece_bytes_;

  std::mutex mutex_;  // guards what follows; never held while a file or the host is called
  bool posted_ = false;
  std::uint64_t token_ = 0;  // of the present post
  bool stopping_ = false;    // canceled, or a piece has failed
  unsigned under_way_ = 0;
  std::optional<PageCursor> cursor_;
  std::optional<Failure> failure_;
};

}  // namespace headrace::posix
