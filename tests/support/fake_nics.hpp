// SPDX-License-Identifier: Apache-2.0
// NICs of one process on scripted time: providers whose bytes, marks and ends arrive when the test says so,
// in any order, twice, late, or never.
//
// Nothing happens by itself. A post draws the moments of its bytes, its mark and its end; `advance` and
// `run_next` carry out what is due. The same seed and the same calls give the same run.
#pragma once

#include "rail/provider.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace headrace::test {

namespace fake_nics {
class State;
}

/// When the software above a NIC that dies hears of it.
enum class Told : std::uint8_t {
  early,  ///< at once: what was posted before may still be placed and marked, until the peer is dropped
  late,   ///< after `FakeFaults::late`; nothing is placed any more
  never,
  by_health,  ///< when it asks: no event says so
};

struct FakeFaults {
  std::chrono::nanoseconds shortest = std::chrono::microseconds(1);  ///< of anything that takes time
  std::chrono::nanoseconds longest = std::chrono::microseconds(1);  ///< longer than that: posts are reordered
  std::chrono::nanoseconds late = std::chrono::milliseconds(1);
  unsigned doubled_percent = 0;  ///< of writes: bytes and mark come a second time
  unsigned lost_percent = 0;     ///< of posts: nothing comes, and the post does not end by itself
};

/// The network. Providers keep its state alive.
///   threads  any
class FakeNics {
 public:
  explicit FakeNics(std::uint64_t seed = 1);
  ~FakeNics();
  FakeNics(const FakeNics&) = delete;
  FakeNics& operator=(const FakeNics&) = delete;

  /// A NIC of that name, which no other has.
  [[nodiscard]] std::unique_ptr<rail::Provider> open(const std::string& name,
                                                     std::uint64_t bits_per_second = 100'000'000'000);

  void set_faults(const FakeFaults& faults);
  void kill(const std::string& name, Told told);
  /// A dead NIC can be used again, by peers that are added from now on. It says `up`.
  void revive(const std::string& name);
  /// The connections between the two fail, and their software hears of it at once; the NICs live.
  void cut(const std::string& one, const std::string& other);

  void advance(std::chrono::nanoseconds by);
  /// Goes to the next moment at which something is due; false: nothing is.
  bool run_next();
  [[nodiscard]] std::uint64_t now_ns() const;
  /// What is due at some time, and posts that have not ended: to see that a test leaves nothing behind.
  [[nodiscard]] std::size_t pending() const;

 private:
  std::shared_ptr<fake_nics::State> state_;
};

}  // namespace headrace::test
