// SPDX-License-Identifier: Apache-2.0
// A request to a peer and its present post. A transport derives what it knows of a request besides.
#pragma once

#include "memory/page_cursor.hpp"
#include "transport/message_outbox.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <memory>
#include <string>

namespace headrace::transport {

/// All that changes is its RequestBook's, and guarded as that is.
class Request {
 public:
  explicit Request(const headrace_prepare_v1& prepared) : args(prepared) {}

  [[nodiscard]] bool is_write() const { return args.op == HEADRACE_WRITE; }

  const headrace_prepare_v1 args;

  // Of the present post.
  [[nodiscard]] bool posted() const { return posted_; }
  [[nodiscard]] std::uint64_t wire_id() const { return wire_id_; }
  [[nodiscard]] bool has_message() const { return message_ != nullptr; }
  /// Where the next chunk begins, and its number.
  [[nodiscard]] PagePosition next() const { return next_; }
  [[nodiscard]] std::uint32_t chunks() const { return chunks_; }

 private:
  friend class RequestBook;

  bool posted_ = false;
  bool cut_all_ = false;  // no chunk is left to be cut
  bool canceling_ = false;
  std::uint64_t token_ = 0;
  std::uint64_t wire_id_ = 0;
  std::uint64_t cancel_ns_ = 0;
  std::uint64_t uncut_bytes_ = 0;  // not yet in a chunk
  PagePosition next_;
  std::uint32_t chunks_ = 0;      // cut so far
  std::uint32_t unanswered_ = 0;  // of them
  Status status_;                 // the first error
  std::string text_;
  std::shared_ptr<OutMessage> message_;
};

}  // namespace headrace::transport
