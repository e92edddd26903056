// SPDX-License-Identifier: Apache-2.0
// A request of a link and its present post.
#pragma once

#include "memory/page_cursor.hpp"
#include "transport/chunk.hpp"

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::rail {

/// Which rails carry the chunks of a request.
enum class Spread : std::uint8_t {
  free,     ///< the rail that would be done first: an idle NIC takes work, and unequal ones fill up
  in_turn,  ///< one rail after the other
  pinned,   ///< one NIC, once it is connected and as long as it lives
};

struct CountedAt {
  std::uint32_t scope = 0;
  std::uint32_t immediate = 0;
  std::uint32_t amount = 1;
};

/// How often a write is counted: `amount` times this many. All at once, when all of its bytes are there: a
/// peer that waits for n pages never sees a count whose page has not come.
enum class CountBy : std::uint8_t {
  request,  ///< once
  page,     ///< once for each of its pages, also for one of 0 bytes
  shard,    ///< once for each of `PostPlan::shards`
};

struct PostPlan {
  Spread spread = Spread::free;
  std::uint32_t pinned_nic = 0;
  std::optional<CountedAt> counted;  ///< of a write: counted at the peer after all bytes
  CountBy count_by = CountBy::request;
  std::uint32_t shards = 0;  ///< 0: one for each rail of the link, so that both sides know the number
  bool near_first = false;   ///< of a pinned one: a rail of this host carries it while there is one
};

/// Its owner keeps it, its page lists and their memory until its post has ended.
class Request {
 public:
  /// The regions of the local side are LocalRegion, those of the remote side RemoteRegion.
  explicit Request(const headrace_prepare_v1& prepared, std::uint64_t message_id = 0)
      : args(prepared), message(message_id) {}

  [[nodiscard]] bool is_write() const { return args.op == HEADRACE_WRITE; }
  [[nodiscard]] bool posted() const { return posted_; }
  /// Of a post that has failed: what, to whom, which pages over which NIC, why. Empty after ok.
  [[nodiscard]] const std::string& why() const { return why_; }
  /// Its last part: which pages over which NIC, why. For callers that name the operation themselves.
  [[nodiscard]] std::string_view reason() const { return std::string_view(why_).substr(reason_at_); }

  const headrace_prepare_v1 args;
  const std::uint64_t message;  ///< of the peer that it reads, inside of a link; 0: it is a user's

 private:
  friend class Link;

  PostPlan plan_;
  bool posted_ = false;
  bool canceling_ = false;
  bool partial_ = false;    // some NIC does not reach its memory
  std::uint64_t post_ = 0;  // its number in the link
  bool cut_all_ = false;
  bool settled_ = false;  // its chunks have no marks
  PagePosition next_;
  std::uint32_t chunks_ = 0;  // cut so far
  std::uint64_t unended_ = 0;
  std::uint64_t number_ = 0;  // 0: not counted
  Status status_;             // the first error
  std::string why_;           // in words
  std::size_t reason_at_ = 0;
};

}  // namespace headrace::rail
