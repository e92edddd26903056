// SPDX-License-Identifier: Apache-2.0
// How a link sees the posts that it must end.
#pragma once

#include <headrace/result.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace headrace::host_link {

/// How a piece of work ended, with a sentence if it failed.
struct Outcome {
  Status status;
  std::string text;

  /// Of one that failed.
  [[nodiscard]] Error error() && { return {status.code, std::move(text), status.page}; }
};

/// A post of a backend's request. Counted: its maker holds the first reference, each list of the link
/// another.
class Post {
 public:
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  void ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // For the link: with a reference held.

  /// The link is no more: ends the post with this outcome, as soon as its memory is quiet.
  virtual void end_early(const Outcome& outcome) = 0;

  std::size_t place_in_link = 0;  ///< where the link keeps it; the link's

 protected:
  Post() = default;
  virtual ~Post() = default;

 private:
  std::atomic<std::uint32_t> references_{1};
};

}  // namespace headrace::host_link
