// SPDX-License-Identifier: Apache-2.0
// A request's place in a CUDA graph: from the capture of its post until it is canceled.
#pragma once

#include <headrace/request.hpp>

#include "engine/page_lists.hpp"
#include "engine/path_choice.hpp"

#include <atomic>
#include <memory>
#include <optional>

namespace headrace::engine {

/// The value that names the default stream to a plugin.
inline void* const default_stream =
    reinterpret_cast<void*>(std::uintptr_t{1});  // NOLINT(performance-no-int-to-ptr)

/// Whether a captured request could move these pages.
///   errors  invalid_argument (no indices; too many; the sides differ in number; an index of no page)
[[nodiscard]] Result<void> check_indices(const RequestPlan& plan, const PageIndices& given);

/// Used under the lock of its request's path. `path` and `plan` outlive it.
class GraphCapture {
 public:
  struct Post {
    void* stream = nullptr;
    const std::optional<PageIndices>* indices = nullptr;  ///< that the graph reads before it moves
    bool has_message = false;                             ///< no graph carries one
    const std::optional<Immediate>* immediate = nullptr;  ///< counted at every replay
  };
  /// Records the post into the graph that its stream captures. Null if the stream is not being captured: then
  /// nothing has been done.
  static Result<std::unique_ptr<GraphCapture>> record(const Path& path, const RequestPlan& plan,
                                                      const Post& post);
  /// The backend releases what replays use.
  ~GraphCapture() { path_.backend->end_capture(path_.request); }
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  Result<void> set_indices(const PageIndices& given, void* stream);
  /// The number of replays that have ended. `fresh`: those of them that were not returned before.
  Result<std::uint64_t> replays(const PageLists& lists, std::uint64_t& fresh);

 private:
  GraphCapture(const Path& path, const RequestPlan& plan) : path_(path), plan_(plan) {}
  Result<std::uint64_t> ask_backend() const;

  const Path& path_;
  const RequestPlan& plan_;
  std::atomic<std::uint64_t> counted_{0};
};

}  // namespace headrace::engine
