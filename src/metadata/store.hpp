// SPDX-License-Identifier: Apache-2.0
// The place where agents leave their metadata for each other: a small map from names to bytes that drops the
// entries of dead agents.
#pragma once

#include "base/clock.hpp"
#include "base/errors.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::metadata {

/// A change of a name in the store. Several changes in a row may be reported as one, so the receiver reads
/// the entry.
struct StoreEvent {
  enum class Kind {
    joined,   ///< it has an entry and had none
    updated,  ///< its entries changed
    left,     ///< its last entry is gone: removed, or its publisher died
  } kind = Kind::joined;
  std::string name;
  friend bool operator==(const StoreEvent&, const StoreEvent&) = default;
};

/// An entry is (name, label) -> bytes. The name is an agent's; the label distinguishes several entries of one
/// agent (usually it is ""). The last publisher of an entry owns it: removal, death or expiry of an earlier
/// publisher no longer affects it.
///   threads  every method from any thread. Inside a watch's callback only `fetch` and `list` may be called
class Store {
 public:
  static constexpr std::size_t most_name_bytes = 255;  ///< of a name (not empty) and of a label
  static constexpr std::size_t most_entry_bytes = (std::size_t{1} << 30) + 4096;

  /// A running watch. The destructor ends it: when it returns, the callback is not running and will not be
  /// called again. It may also run inside the callback; then that call is the last one.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  using OnEvent = std::function<void(const StoreEvent&)>;

  /// Removes the entries that this object published, if the store can be reached within two seconds; the rest
  /// expires, or goes when the store can be reached again.
  virtual ~Store() = default;

  /// Ends the calls of this object that wait for the store with canceled; a later call that would wait ends
  /// so, too. Its watches and its entries stay, and calls of other objects go on.
  virtual void cancel_calls() noexcept = 0;

  /// Makes `bytes` the entry, completely or not at all. The entry lives as long as this object; after the
  /// process has died or lost the store, it disappears within `ttl` and a few seconds. A store that sees the
  /// death of its publishers may ignore `ttl`.
  ///   errors  invalid_argument (name, label, size, ttl under 1 s), timed_out, canceled, peer_lost (store
  ///           out of reach), exhausted. After timed_out and canceled the entry may be there all the same,
  ///           until this object ends
  [[nodiscard]] virtual Result<void> publish(std::string_view name, std::string_view label,
                                             std::string_view bytes, std::chrono::nanoseconds ttl,
                                             Deadline deadline) = 0;
  /// Removes an entry that this object owns.
  ///   errors  not_found (it owns no entry of that name: never published, or another publisher has it now),
  ///           timed_out, canceled, peer_lost
  [[nodiscard]] virtual Result<void> remove(std::string_view name, std::string_view label,
                                            Deadline deadline) = 0;
  /// The bytes of an entry, as one publish wrote them.
  ///   errors  not_found (no entry, or its publisher is gone), timed_out, canceled, peer_lost, corrupt (they
  ///           are not what was published)
  [[nodiscard]] virtual Result<std::string> fetch(std::string_view name, std::string_view label,
                                                  Deadline deadline) = 0;
  /// The names that have an entry, each once, in alphabetical order.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(Deadline deadline) = 0;
  /// Calls `on_event` for every name that has an entry now (joined), then for each change, one call at a
  /// time, on a thread that all watches of this store in the process share: a call that waits delays theirs.
  /// While the store is out of reach it retries; afterwards it reports what it missed.
  ///   errors  exhausted (no thread)
  [[nodiscard]] virtual Result<std::unique_ptr<Watch>> watch(OnEvent on_event) = 0;
};

/// The checks of publish, for its implementations.
[[nodiscard]] Result<void> check_entry(std::string_view name, std::string_view label, std::size_t bytes,
                                       std::chrono::nanoseconds ttl);

// The sentences of not_found that all stores use; `where` names the store.
[[nodiscard]] Error no_such_entry(std::string_view name, std::string_view label, std::string_view where);
[[nodiscard]] Error not_the_owner(std::string_view name, std::string_view label, std::string_view where);

/// A name as one component of a path or key: letters, digits, '_', '-' and '.' (but not first) stay; all else
/// becomes %XX.
[[nodiscard]] std::string escape_name(std::string_view name);
/// The name of an escaped name. errors: invalid_argument (not a result of escape_name)
[[nodiscard]] Result<std::string> unescape_name(std::string_view escaped);

}  // namespace headrace::metadata
