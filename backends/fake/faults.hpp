// SPDX-License-Identifier: Apache-2.0
// Faults on purpose: which post, message or preparation of an instance goes wrong, and how.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::fake {

enum class FaultKind {
  drop,       ///< the post does nothing and does not end until it is canceled or its link goes
  delay,      ///< nothing happens for `value` nanoseconds of the host's clock
  duplicate,  ///< the bytes are written twice and the message is sent twice
  reorder,    ///< it happens after what comes next, or when there is nothing else to do
  kill,       ///< the link is lost when page `value` is reached (a message alone: before it is sent)
  partial,    ///< ends with backend_failed after `value` bytes
  deny,       ///< `prepare` answers not_supported
};

struct Fault {
  FaultKind kind = FaultKind::drop;
  std::uint64_t value = 0;
  std::uint64_t first = 1;  ///< from the first-th on ...
  std::uint64_t last =
      UINT64_MAX;  ///< ... to the last-th. Posts and messages count together, preparations apart
};

/// What befalls one post or message.
struct Mishap {
  bool drop = false;
  bool duplicate = false;
  bool reorder = false;
  std::uint64_t delay_ns = 0;
  std::optional<std::uint64_t> kill_page;
  std::optional<std::uint64_t> partial_bytes;
};

/// The faults of one instance, in the order in which it acts: the same script and the same calls give the
/// same faults. Thread-safe; tests may add while the instance runs.
class FaultScript {
 public:
  FaultScript() = default;

  /// "drop@3, delay:5ms@4..6, kill:7": KIND[:VALUE][@NTH | @FIRST..LAST | @FIRST..], comma separated. Without
  /// @: always.
  ///   errors   invalid_argument, with the part that is wrong and what may stand there
  static Result<std::vector<Fault>> parse(std::string_view text);

  void add(const Fault& fault);
  void add(const std::vector<Fault>& faults);
  void clear();

  /// Counts one more post or message and says what befalls it.
  Mishap next_action();
  /// Counts one more preparation; whether it is denied.
  bool next_preparation_denied();

 private:
  std::mutex mutex_;
  std::vector<Fault> faults_;
  std::uint64_t actions_ = 0;
  std::uint64_t preparations_ = 0;
};

}  // namespace headrace::fake
