// SPDX-License-Identifier: Apache-2.0
// The contract suite of rail::Provider. A provider joins it in its own test program: include this file once,
// say how two NICs are made, and instantiate:
//
//   class TcpNics final : public ProviderPair { ... };
//   INSTANTIATE_TEST_SUITE_P(Tcp, ProviderContract, testing::Values(ProviderCase{"tcp", [] {
//     return std::make_unique<TcpNics>();
//   }}), name_of_provider_case);
#pragma once

#include "rail/provider.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test {

/// Two NICs that reach each other.
class ProviderPair {
 public:
  virtual ~ProviderPair() = default;
  [[nodiscard]] virtual rail::Provider& nic(int side) = 0;
  /// The far NIC goes away, as with its process.
  virtual void close(int side) = 0;
  /// Lets a little time pass.
  virtual void pass() = 0;
};

struct ProviderCase {
  std::string name;
  std::function<std::unique_ptr<ProviderPair>()> make;
};
inline std::ostream& operator<<(std::ostream& out, const ProviderCase& which) { return out << which.name; }
inline std::string name_of_provider_case(const testing::TestParamInfo<ProviderCase>& info) {
  return info.param.name;
}

class ProviderContract : public testing::TestWithParam<ProviderCase> {
 protected:
  using Event = rail::Event;
  using Kind = Event::Kind;

  static constexpr std::size_t memory_bytes = 256 * 1024;

  struct Side {
    std::vector<std::byte> memory = std::vector<std::byte>(memory_bytes);
    rail::Registered registered;
    rail::PeerId peer{};
    rail::RemoteId remote{};
    std::vector<Event> events;  // all that came
  };

  void SetUp() override { pair_ = GetParam().make(); }
  void TearDown() override { pair_.reset(); }  // before the memory goes

  rail::Provider& nic(int side) { return pair_->nic(side); }

  void poll() {
    for (int side = 0; side < 2; ++side) {
      if (closed_[side]) continue;
      std::array<Event, 3> some;  // fewer than there may be
      for (std::size_t n = some.size(); n == some.size();) {
        n = nic(side).poll(some);
        for (std::size_t i = 0; i < n; ++i) take(side, some[i]);
      }
    }
  }
  void take(int side, const Event& event) {
    if (event.kind == Kind::marked && on_mark) on_mark(side, event);
    EXPECT_TRUE(event.kind != Kind::ended || ended_[side].insert(event.token).second) << "ended twice";
    for (const Event& before : sides[side].events)
      EXPECT_TRUE(before.kind != Kind::dropped || before.peer != event.peer) << "an event after dropped";
    sides[side].events.push_back(event);
  }
  bool until(const std::function<bool()>& holds) {
    for (int i = 0; i < 20'000; ++i) {
      poll();
      if (holds()) return true;
      pair_->pass();
    }
    return false;
  }
  const Event* find(int side, Kind kind, std::optional<std::uint64_t> token = {}) {
    for (const Event& event : sides[side].events)
      if (event.kind == kind && (!token || event.token == *token)) return &event;
    return nullptr;
  }
  std::size_t count(int side, Kind kind) {
    const auto& events = sides[side].events;
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(), [kind](const Event& e) { return e.kind == kind; }));
  }
  /// Its status; nullopt: it does not end.
  std::optional<Code> end_of(int side, std::uint64_t token) {
    if (!until([&] { return find(side, Kind::ended, token) != nullptr; })) return {};
    return find(side, Kind::ended, token)->status.code;
  }

  /// Both sides know each other and their memories.
  void connect() {
    for (int side = 0; side < 2; ++side) {
      auto& mine = sides[side];
      auto registered = nic(side).register_memory({reinterpret_cast<std::uintptr_t>(mine.memory.data()),
                                                   memory_bytes,
                                                   {},
                                                   rail::Access::peers_read_and_write});
      ASSERT_TRUE(registered) << registered.error().message;
      mine.registered = *registered;
    }
    auto added = nic(0).add_peer(nic(1).address(), "the hello");
    ASSERT_TRUE(added) << added.error().message;
    sides[0].peer = *added;
    ASSERT_TRUE(until([&] { return find(0, Kind::ready) && find(1, Kind::joined); }));
    sides[1].peer = find(1, Kind::joined)->peer;
    for (int side = 0; side < 2; ++side) {
      auto loaded = nic(side).load_memory(sides[side].peer, sides[1 - side].registered.key);
      ASSERT_TRUE(loaded) << loaded.error().message;
      sides[side].remote = *loaded;
    }
  }
  [[nodiscard]] rail::Move move(int side, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {sides[side].registered.id, sides[side].remote, from, to, bytes};
  }
  void fill(int side, unsigned seed) {
    std::mt19937 random(seed);
    for (auto& byte : sides[side].memory) byte = static_cast<std::byte>(random());
  }
  bool same(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    return std::memcmp(sides[0].memory.data() + from, sides[1].memory.data() + to, bytes) == 0;
  }
  Status write(std::span<const rail::Move> moves, std::uint64_t token,
               std::optional<std::uint32_t> mark = {}) {
    return nic(0).post_write({sides[0].peer, moves, mark, token});
  }

  std::array<Side, 2> sides;
  std::function<void(int, const Event&)> on_mark;
  std::unique_ptr<ProviderPair> pair_;
  std::array<bool, 2> closed_{};

 private:
  std::array<std::set<std::uint64_t>, 2> ended_;
};

TEST_P(ProviderContract, the_far_side_hears_the_hello_of_a_peer_that_was_added) {
  connect();
  EXPECT_EQ(find(1, Kind::joined)->text, "the hello");
  EXPECT_NE(sides[0].peer, rail::PeerId::none);
  EXPECT_EQ(count(0, Kind::ready), 1U);
}

TEST_P(ProviderContract, says_what_it_can_do) {
  const auto& info = nic(0).info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.max_moves, 1U);
  EXPECT_GE(info.max_posts, 16U);
  EXPECT_GE(info.marks_in_flight, 1U);
  EXPECT_GE(info.max_message_bytes, 4096U);
  EXPECT_TRUE(nic(0).health().up);
  EXPECT_EQ(nic(0).address(), nic(0).address());
}

TEST_P(ProviderContract, a_write_has_ended_when_all_of_its_bytes_are_in_place) {
  connect();
  fill(0, 1);
  std::vector<rail::Move> moves;
  for (std::uint64_t i = 0; i < std::min(nic(0).info().max_moves, 50U); ++i)
    moves.push_back(move(0, 1000 * i + 1, 2000 * i + 3, 999));
  ASSERT_TRUE(write(moves, 7).ok());
  EXPECT_EQ(end_of(0, 7), Code::ok);
  for (const auto& each : moves) EXPECT_TRUE(same(each.local_offset, each.remote_offset, each.bytes));
  EXPECT_EQ(sides[1].memory[2], std::byte{0}) << "a byte beside";
  EXPECT_EQ(sides[1].memory[1002], std::byte{0}) << "a byte beside";
}

TEST_P(ProviderContract, either_side_may_write) {
  connect();
  fill(1, 1);
  const std::array moves{move(1, 0, 0, memory_bytes)};
  ASSERT_TRUE(nic(1).post_write({sides[1].peer, moves, {}, 9}).ok());
  EXPECT_EQ(end_of(1, 9), Code::ok);
  EXPECT_TRUE(same(0, 0, memory_bytes));
}

TEST_P(ProviderContract, a_mark_comes_after_the_bytes_of_all_moves_of_its_write) {
  connect();
  fill(0, 2);
  constexpr std::uint32_t writes = 100;
  constexpr std::uint64_t each_bytes = 2000;
  on_mark = [&](int side, const Event& event) {
    EXPECT_EQ(side, 1);
    EXPECT_EQ(event.peer, sides[1].peer);
    ASSERT_LT(event.mark, writes);
    EXPECT_TRUE(same(event.mark * each_bytes, event.mark * each_bytes, each_bytes)) << event.mark;
  };
  for (std::uint32_t i = 0; i < writes; ++i) {
    std::vector<rail::Move> moves;
    const std::uint64_t pieces = std::min(nic(0).info().max_moves, 1 + i % 4);
    for (std::uint64_t p = 0; p < pieces; ++p) {
      const std::uint64_t from = each_bytes * p / pieces, to = each_bytes * (p + 1) / pieces;
      moves.push_back(move(0, i * each_bytes + from, i * each_bytes + from, to - from));
    }
    ASSERT_TRUE(until([&] { return write(moves, i, i).ok(); }));
  }
  ASSERT_TRUE(until([&] { return count(0, Kind::ended) == writes && count(1, Kind::marked) >= writes; }));
}

TEST_P(ProviderContract, a_mark_needs_no_bytes) {
  connect();
  ASSERT_TRUE(write({}, 1, 0xFFFFFFFF).ok());
  ASSERT_TRUE(until([&] { return count(1, Kind::marked) == 1; }));
  EXPECT_EQ(find(1, Kind::marked)->mark, 0xFFFFFFFF);
  EXPECT_EQ(end_of(0, 1), Code::ok);
}

TEST_P(ProviderContract, a_read_has_ended_when_its_bytes_are_here) {
  connect();
  fill(1, 3);
  const std::array moves{move(0, 5, 100, 70'000), move(0, 80'000, 1, 3)};
  ASSERT_TRUE(nic(0).post_read({sides[0].peer, moves, 4}).ok());
  EXPECT_EQ(end_of(0, 4), Code::ok);
  EXPECT_TRUE(same(5, 100, 70'000));
  EXPECT_TRUE(same(80'000, 1, 3));
}

TEST_P(ProviderContract, a_message_waits_for_a_receive_and_delays_no_write) {
  connect();
  fill(0, 4);
  ASSERT_TRUE(nic(0).post_message(sides[0].peer, {sides[0].registered.id, 10, 4000}, 1).ok());
  const std::array moves{move(0, 0, 0, 10)};
  ASSERT_TRUE(write(moves, 2, 1).ok());
  EXPECT_EQ(end_of(0, 2), Code::ok);
  EXPECT_EQ(find(1, Kind::received), nullptr);
  ASSERT_TRUE(nic(1).post_receive({sides[1].registered.id, 50'000, 4096}, 77).ok());
  ASSERT_TRUE(until([&] { return find(1, Kind::received) != nullptr; }));
  EXPECT_EQ(find(1, Kind::received)->token, 77U);
  EXPECT_EQ(find(1, Kind::received)->bytes, 4000U);
  EXPECT_EQ(find(1, Kind::received)->peer, sides[1].peer);
  EXPECT_TRUE(same(10, 50'000, 4000));
  EXPECT_EQ(end_of(0, 1), Code::ok);
}

TEST_P(ProviderContract, a_message_that_is_longer_than_the_receive_fails_and_leaves_it) {
  connect();
  ASSERT_TRUE(nic(1).post_receive({sides[1].registered.id, 0, 100}, 5).ok());
  ASSERT_TRUE(nic(0).post_message(sides[0].peer, {sides[0].registered.id, 0, 101}, 1).ok());
  EXPECT_EQ(end_of(0, 1), Code::invalid_argument);
  ASSERT_TRUE(nic(0).post_message(sides[0].peer, {sides[0].registered.id, 0, 100}, 2).ok());
  EXPECT_EQ(end_of(0, 2), Code::ok);
  EXPECT_TRUE(until([&] { return find(1, Kind::received, 5) != nullptr; }));
}

TEST_P(ProviderContract, a_full_queue_says_would_block_and_every_accepted_post_ends_once) {
  connect();
  const std::array moves{move(0, 0, 0, 64)};
  std::uint64_t accepted = 0;
  Status last;
  for (std::uint64_t i = 0; last.ok() && i < nic(0).info().max_posts + 1ULL; ++i) {
    last = write(moves, i);
    accepted += last.ok() ? 1 : 0;
  }
  EXPECT_TRUE(last.ok() || last.code == Code::would_block);
  ASSERT_TRUE(until([&] { return count(0, Kind::ended) == accepted; }));
  ASSERT_TRUE(write(moves, 1'000'000).ok());
  EXPECT_EQ(end_of(0, 1'000'000), Code::ok);
  EXPECT_EQ(count(0, Kind::ended), accepted + 1);
}

TEST_P(ProviderContract, wrong_posts_are_refused_and_do_not_end) {
  connect();
  const std::array outside{move(0, memory_bytes - 1, 0, 2)};
  EXPECT_EQ(write(outside, 1).code, Code::invalid_argument);
  const std::array empty{move(0, 0, 0, 0)};
  EXPECT_EQ(write(empty, 2).code, Code::invalid_argument);
  EXPECT_EQ(write({}, 3).code, Code::invalid_argument) << "neither bytes nor a mark";
  const std::vector<rail::Move> many(nic(0).info().max_moves + 1ULL, move(0, 0, 0, 1));
  EXPECT_EQ(write(many, 4).code, Code::invalid_argument);
  const std::array fine{move(0, 0, 0, 1)};
  EXPECT_EQ(nic(0).post_write({rail::PeerId{12345}, fine, {}, 5}).code, Code::peer_lost);
  EXPECT_EQ(nic(0).post_message(sides[0].peer, {sides[0].registered.id, memory_bytes, 1}, 6).code,
            Code::invalid_argument);
  EXPECT_EQ(nic(0).post_receive({sides[0].registered.id, memory_bytes - 1, 2}, 7).code,
            Code::invalid_argument);
  ASSERT_TRUE(write(fine, 8).ok());
  EXPECT_EQ(end_of(0, 8), Code::ok);
  EXPECT_EQ(count(0, Kind::ended), 1U);
}

TEST_P(ProviderContract, the_owner_refuses_a_range_outside_of_its_memory_and_reports_no_mark) {
  connect();
  const std::array outside{move(0, 0, memory_bytes - 10, 11)};
  ASSERT_TRUE(write(outside, 1, 9).ok());
  EXPECT_EQ(end_of(0, 1), Code::not_found);
  EXPECT_EQ(count(1, Kind::marked), 0U);
}

TEST_P(ProviderContract, no_peer_reaches_memory_after_deregister) {
  connect();
  fill(0, 5);
  nic(1).deregister(sides[1].registered.id);
  const std::array moves{move(0, 0, 0, 1000)};
  ASSERT_TRUE(write(moves, 1, 9).ok());
  EXPECT_EQ(end_of(0, 1), Code::not_found);
  EXPECT_EQ(count(1, Kind::marked), 0U);
  EXPECT_EQ(sides[1].memory, std::vector<std::byte>(memory_bytes));
}

TEST_P(ProviderContract, memory_that_peers_may_only_read_is_not_written) {
  connect();
  std::vector<std::byte> only(100);
  auto registered = nic(1).register_memory(
      {reinterpret_cast<std::uintptr_t>(only.data()), only.size(), {}, rail::Access::peers_read});
  ASSERT_TRUE(registered);
  auto loaded = nic(0).load_memory(sides[0].peer, registered->key);
  ASSERT_TRUE(loaded);
  fill(0, 6);
  const std::array moves{rail::Move{sides[0].registered.id, *loaded, 0, 0, 100}};
  ASSERT_TRUE(nic(0).post_read({sides[0].peer, moves, 1}).ok());
  EXPECT_EQ(end_of(0, 1), Code::ok);
  fill(0, 6);
  ASSERT_TRUE(write(moves, 2).ok());
  EXPECT_EQ(end_of(0, 2), Code::not_found);
  EXPECT_EQ(only, std::vector<std::byte>(100));
  pair_.reset();
}

TEST_P(ProviderContract, strange_addresses_and_keys_are_refused_with_a_sentence) {
  connect();
  for (const char* bytes : {"", "x", "\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    const auto added = nic(0).add_peer(bytes, "");
    ASSERT_FALSE(added);
    EXPECT_TRUE(added.code() == Code::corrupt || added.code() == Code::not_supported);
    EXPECT_FALSE(added.error().message.empty());
    const auto loaded = nic(0).load_memory(sides[0].peer, bytes);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.code(), Code::corrupt);
  }
}

TEST_P(ProviderContract, dropping_a_peer_ends_its_posts_and_says_so_last) {
  connect();
  fill(0, 7);
  const std::array moves{move(0, 0, 0, 100'000)};
  std::uint64_t accepted = 0;
  while (accepted < 10 && write(moves, accepted, 1).ok()) ++accepted;
  ASSERT_TRUE(nic(0).post_message(sides[0].peer, {sides[0].registered.id, 0, 10}, 100).ok());
  nic(0).drop_peer(sides[0].peer);
  ASSERT_TRUE(until([&] { return find(0, Kind::dropped) != nullptr; }));
  EXPECT_EQ(count(0, Kind::ended), accepted + 1);
  EXPECT_EQ(write(moves, 200).code, Code::peer_lost);
}

TEST_P(ProviderContract, nothing_of_a_peer_arrives_after_it_was_dropped) {
  connect();
  fill(0, 8);
  const std::array moves{move(0, 0, 0, memory_bytes)};
  for (std::uint64_t i = 0; i < 5; ++i) write(moves, i, 1);
  nic(1).drop_peer(sides[1].peer);
  ASSERT_TRUE(until([&] { return find(1, Kind::dropped) != nullptr; }));
  const auto then = sides[1].memory;
  const auto marks = count(1, Kind::marked);
  ASSERT_TRUE(until([&] { return find(0, Kind::lost) != nullptr; }));
  for (int i = 0; i < 20; ++i) pair_->pass();
  poll();
  EXPECT_EQ(sides[1].memory, then);
  EXPECT_EQ(count(1, Kind::marked), marks);
  nic(0).drop_peer(sides[0].peer);
  ASSERT_TRUE(until([&] { return find(0, Kind::dropped) != nullptr; }));
}

TEST_P(ProviderContract, a_peer_can_be_added_again_and_is_another_one) {
  connect();
  nic(0).drop_peer(sides[0].peer);
  ASSERT_TRUE(until([&] { return find(0, Kind::dropped) != nullptr; }));
  auto again = nic(0).add_peer(nic(1).address(), "again");
  ASSERT_TRUE(again);
  EXPECT_NE(*again, sides[0].peer);
  ASSERT_TRUE(until([&] { return count(0, Kind::ready) == 2 && count(1, Kind::joined) == 2; }));
  EXPECT_EQ(sides[1].events.back().kind == Kind::joined ? sides[1].events.back().text : "again", "again");
}

TEST_P(ProviderContract, a_peer_whose_NIC_goes_is_lost) {
  connect();
  pair_->close(1);
  closed_[1] = true;
  ASSERT_TRUE(until([&] { return find(0, Kind::lost) != nullptr; }));
  EXPECT_EQ(find(0, Kind::lost)->peer, sides[0].peer);
  EXPECT_FALSE(find(0, Kind::lost)->text.empty());
  nic(0).drop_peer(sides[0].peer);
  EXPECT_TRUE(until([&] { return find(0, Kind::dropped) != nullptr; }));
}

TEST_P(ProviderContract, a_canceled_post_ends) {
  connect();
  const std::array moves{move(0, 0, 0, memory_bytes)};
  ASSERT_TRUE(write(moves, 1).ok());
  nic(0).cancel(sides[0].peer, 1);
  nic(0).cancel(sides[0].peer, 999);
  const auto code = end_of(0, 1);
  EXPECT_TRUE(code == Code::ok || code == Code::canceled);
}

TEST_P(ProviderContract, memory_is_registered_by_any_thread_beside_posts) {
  connect();
  std::atomic<bool> stop = false;
  std::thread other([&] {
    std::vector<std::byte> memory(4096);
    while (!stop) {
      auto registered =
          nic(0).register_memory({reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), {}, {}});
      if (registered) nic(0).deregister(registered->id);
    }
  });
  const std::array moves{move(0, 0, 0, 1000)};
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_TRUE(write(moves, i, 1).ok());
    EXPECT_EQ(end_of(0, i), Code::ok);
  }
  stop = true;
  other.join();
}

}  // namespace headrace::test
