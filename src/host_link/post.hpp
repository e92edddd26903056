// SPDX-License-Identifier: Apache-2.0
// How a link sees the posts that it must start or end.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <string>

namespace headrace::host_link {

/// How a piece of work ended, with a sentence if it failed.
struct Outcome {
  Status status;
  std::string text;
};

/// A post of a backend's request. Counted: each list of the link holds a reference.
class Post {
 public:
  virtual void ref() = 0;
  virtual void unref() = 0;

  // For the link: with a reference held.

  /// The link became ready: carries out the post that waited for it.
  virtual void start() = 0;
  /// The link is no more: ends the post with this outcome, as soon as its memory is quiet.
  virtual void end_early(const Outcome& outcome) = 0;

  std::size_t place_in_link = 0;  ///< where the link keeps it; the link's

 protected:
  Post() = default;
  ~Post() = default;
  Post(const Post&) = default;
  Post& operator=(const Post&) = default;
};

}  // namespace headrace::host_link
