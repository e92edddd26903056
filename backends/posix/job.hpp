// SPDX-License-Identifier: Apache-2.0
// The work of a request: threads take piece after piece of it, and who gives back the last one tells the end.
#pragma once

#include "memory/page_cursor.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace headrace::posix {

/// Co-owned by its request and by the tasks in the queue, which may come late: those find nothing and go. Any
/// thread.
class Job {
 public:
  /// `prepared` with what it points to stays until the request is released; it is not looked at after that.
  Job(plugin::Host host, const headrace_prepare_v1& prepared, std::uint64_t piece_bytes)
      : host_(host), args_(prepared), piece_bytes_(piece_bytes) {}

  /// How many threads find something to do at most.
  [[nodiscard]] std::uint64_t pieces() const;

  /// From here on there is work; tells the end at once if there is nothing to move. False: a post of it is
  /// under way already.
  [[nodiscard]] bool begin();
  /// Takes `begin` back. False: a thread has begun, and the end will be told.
  [[nodiscard]] bool take_back();
  /// Does pieces until none is left.
  void work();
  /// No further piece is begun; the end is told once nobody is inside one.
  void cancel();

 private:
  static constexpr std::size_t runs_a_piece =
      128;  // of the 1024 parts that a call takes; a piece of small pages ends with them

  /// What stopped a request: the error at the lowest page that was tried.
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
  bool stopping_ = false;  // canceled, or a piece has failed
  unsigned under_way_ = 0;
  std::optional<PageCursor> cursor_;
  std::optional<Failure> failure_;
};

}  // namespace headrace::posix
