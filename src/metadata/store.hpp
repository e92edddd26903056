// SPDX-License-Identifier: Apache-2.0
// Where agents leave their metadata for one another: a small map from names to bytes that forgets those who
// died.
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

/// What a watch tells of a name. Several changes in a row may be told as one: who is told looks again.
struct StoreEvent {
  enum class Kind {
    joined,   ///< it has an entry and had none
    updated,  ///< its entries changed
    left,     ///< its last entry is gone: removed, or its publisher died
  } kind = Kind::joined;
  std::string name;
  friend bool operator==(const StoreEvent&, const StoreEvent&) = default;
};

/// An entry is (name, label) -> bytes: the name is an agent's, the label tells apart what it publishes
/// (usually ""). Whoever publishes an entry last owns it: an earlier publisher's remove, death or expiry no
/// longer touches it.
///   threads  every method from any thread; none may be called from inside a watch's callback but `fetch` and
///   `list`
class Store {
 public:
  static constexpr std::size_t most_name_bytes = 255;  ///< of a name (not empty) and of a label
  static constexpr std::size_t most_entry_bytes = (std::size_t{1} << 30) + 4096;

  /// A callback's life: destroying it ends it, and returns once the callback is not running and will not be
  /// called again. From inside the callback it may be destroyed too; then that call is the last one.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  using OnEvent = std::function<void(const StoreEvent&)>;

  /// Takes out what this object published, as far as the store can be reached within two seconds; what is
  /// left expires.
  virtual ~Store() = default;

  /// Makes `bytes` the entry, whole or not at all; keeps it alive while this object lives, and lets it go at
  /// most `ttl` and a few seconds after this process died or lost the store. A store that sees its
  /// publishers' death itself may ignore `ttl`.
  ///   errors  invalid_argument (name, label, size, ttl under 1 s), timed_out, peer_lost (store out of
  ///   reach), exhausted
  [[nodiscard]] virtual Result<void> publish(std::string_view name, std::string_view label,
                                             std::string_view bytes, std::chrono::nanoseconds ttl,
                                             Deadline deadline) = 0;
  /// Takes out an entry that this object owns.
  ///   errors  not_found (it owns none of that name: never published, or somebody else has since), timed_out,
  ///   peer_lost
  [[nodiscard]] virtual Result<void> remove(std::string_view name, std::string_view label,
                                            Deadline deadline) = 0;
  /// The entry's bytes, as one publish gave them.
  ///   errors  not_found (no entry, or its publisher is gone), timed_out, peer_lost, corrupt (they are not
  ///   what was published)
  [[nodiscard]] virtual Result<std::string> fetch(std::string_view name, std::string_view label,
                                                  Deadline deadline) = 0;
  /// The names that have an entry, each once, in alphabetical order.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(Deadline deadline) = 0;
  /// Calls `on_event` for every name that is there now (joined) and for each change from then on, one call at
  /// a time, on a thread of the watch. While the store is out of reach it tries again, and afterwards tells
  /// what it missed.
  ///   errors  exhausted (no thread)
  [[nodiscard]] virtual Result<std::unique_ptr<Watch>> watch(OnEvent on_event) = 0;
};

/// The rules of publish, for its implementations.
[[nodiscard]] Result<void> check_entry(std::string_view name, std::string_view label, std::size_t bytes,
                                       std::chrono::nanoseconds ttl);

// "not_found" in the words that all stores use; `where` names the store.
[[nodiscard]] Error no_such_entry(std::string_view name, std::string_view label, std::string_view where);
[[nodiscard]] Error not_the_owner(std::string_view name, std::string_view label, std::string_view where);

/// A name as a part of a path or key: letters, digits, '_', '-' and '.' (but not in front) stay, all else
/// becomes %XX.
[[nodiscard]] std::string escape_name(std::string_view name);
/// The name again. invalid_argument if it is not what escape_name gives.
[[nodiscard]] Result<std::string> unescape_name(std::string_view escaped);

}  // namespace headrace::metadata
