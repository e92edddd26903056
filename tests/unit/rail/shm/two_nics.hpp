// SPDX-License-Identifier: Apache-2.0
// NICs of this host in one test: opened in a folder, with memory, polled together.
#pragma once

#include "rail/shm/provider.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headrace::rail::shm::test_nics {

using Kind = Event::Kind;

/// A NIC, its memory and what it has told.
struct NearNic {
  NearNic(const std::string& folder, std::size_t bytes, const Options& options = {}) : memory(bytes) {
    auto opened = ShmProvider::open(folder, options);
    EXPECT_TRUE(opened) << opened.error().message;
    nic = std::move(*opened);
    auto made = nic->register_memory(
        {reinterpret_cast<std::uintptr_t>(memory.data()), bytes, {}, Access::peers_read_and_write});
    EXPECT_TRUE(made);
    registered = *made;
  }
  void poll() {
    std::array<Event, 16> some;
    for (std::size_t n = some.size(); n == some.size();) {
      n = nic->poll(some);
      events.insert(events.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }
  /// Polls, or sleeps for a moment until there is something to do.
  void poll_or_sleep() {
    poll();
    if (!nic->arm()) return;
    pollfd waited{nic->descriptor(), POLLIN, 0};
    ::poll(&waited, 1, 1);
  }
  template <class Holds>
  bool until(const Holds& holds) {
    for (int i = 0; i < 20'000; ++i) {
      poll_or_sleep();
      if (holds()) return true;
    }
    return false;
  }
  [[nodiscard]] const Event* find(Kind kind) const {
    const auto at =
        std::find_if(events.begin(), events.end(), [kind](const Event& e) { return e.kind == kind; });
    return at == events.end() ? nullptr : &*at;
  }
  [[nodiscard]] std::size_t count(Kind kind) const {
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(), [kind](const Event& e) { return e.kind == kind; }));
  }
  void fill(char first) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(first + i % 97);
  }

  std::vector<char> memory;
  std::unique_ptr<ShmProvider> nic;
  Registered registered;
  std::vector<Event> events;
};

/// `from` adds `to`; both in this process.
inline PeerId connect(NearNic& from, NearNic& to) {
  const auto added = from.nic->add_peer(to.nic->address(), "hello");
  EXPECT_TRUE(added) << added.error().message;
  EXPECT_TRUE(from.until([&] {
    to.poll();
    return from.find(Kind::ready) != nullptr && to.find(Kind::joined) != nullptr;
  }));
  return *added;
}

}  // namespace headrace::rail::shm::test_nics
