// SPDX-License-Identifier: Apache-2.0
// What moves between one memory here and one peer: a request of a link, and all that it points to.
#pragma once

#include <headrace/fabric.hpp>

#include "base/errors.hpp"
#include "fabric/memory.hpp"
#include "fabric/staged_message.hpp"
#include "fabric/work.hpp"
#include "rail/link.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::fabric {

/// One side: page i begins at base + k * stride, k = indices[i] or i.
struct PageRows {
  std::vector<std::uint32_t> indices;
  std::uint64_t base = 0;
  std::uint64_t stride = 0;
};
/// Checks every page and copies the indices.
///   side    of what the error speaks: "source", "target"
///   errors  invalid_argument (with the page)
[[nodiscard]] Result<PageRows> read_rows(const FabricPages& pages, std::uint64_t page_bytes,
                                         std::uint64_t count, std::uint64_t memory_bytes,
                                         std::string_view side);

/// A peer's memory on one link.
struct KnownRegion : rail::RemoteRegion {
  std::size_t parts = 0;  ///< that use it
};

/// Stays in place while it is posted.
class Part {
 public:
  enum class Kind : std::uint8_t {
    move,     ///< a write, a read, or an immediate alone
    send,     ///< a message: one row here
    receive,  ///< room for one: likewise, without a peer
  };
  struct Setup {
    Kind kind = Kind::move;
    headrace_op_v1 op = HEADRACE_WRITE;
    std::shared_ptr<Memory> here;                  ///< null: an immediate alone
    std::shared_ptr<const DescriptorParts> there;  ///< null: likewise
    NicList owner;                                 ///< of the peer
    PageRows here_rows, there_rows;
    std::uint64_t page_bytes = 0;
    std::uint64_t count = 0;
    rail::PostPlan plan;
    std::shared_ptr<StagedMessage> staged = nullptr;  ///< of a message, if `here` is a GPU's
  };
  Part(std::shared_ptr<Work> work, Setup setup);
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  [[nodiscard]] rail::Request& request() { return request_; }
  /// Names it, while it lives, to a link or an engine that has its message.
  [[nodiscard]] std::uint64_t token() const { return reinterpret_cast<std::uintptr_t>(&request_); }
  /// Before it is posted, if there is one. It outlives the post.
  void aim(KnownRegion& region) {
    aimed = &region;
    ++region.parts;
    there_region_ = static_cast<rail::RemoteRegion*>(&region);
  }

  const Setup setup;
  std::shared_ptr<Work> work;  ///< the worker resets it at the end
  // Of the worker.
  KnownRegion* aimed = nullptr;
  rail::Link* link = nullptr;  ///< that has it
  std::optional<Error> cause;  ///< why it was canceled, without the others

 private:
  void* here_region_;
  void* there_region_ = nullptr;
  headrace_side_v1 here_, there_;
  rail::Request request_;
};

}  // namespace headrace::fabric
