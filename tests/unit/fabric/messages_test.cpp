// SPDX-License-Identifier: Apache-2.0
// Messages: each goes into one receive, in order, whole.
#include "fabric/core.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <stdexcept>

namespace headrace::test_fabric {
namespace {

struct Correspondents : TwoFabrics {
  explicit Correspondents(std::size_t bytes = 1 << 20) : TwoFabrics(bytes) {
    peer = value_of(here.connect(there.address()));
  }
  Result<FabricWork> send(std::uint64_t offset, std::uint64_t bytes, const FabricPost& post = {}) {
    return here.send(peer, here_block->memory, offset, bytes, post);
  }
  Result<FabricWork> receive(std::uint64_t offset, std::uint64_t bytes, const FabricPost& post = {}) {
    return there.receive(there_block->memory, offset, bytes, post);
  }
  FabricPeer peer;
};

TEST(FabricMessages, a_message_fills_the_next_receive_and_tells_its_length) {
  Correspondents two;
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{300'000}, std::uint64_t{0}}) {
    auto expected = two.there_block->bytes;
    std::memcpy(expected.data() + 7, two.here_block->bytes.data() + 13, bytes);
    const auto received = value_of(two.receive(7, 400'000));
    expect_done(two.send(13, bytes));
    ASSERT_TRUE(received.wait(long_enough).ok());
    EXPECT_EQ(received.bytes(), bytes);
    ASSERT_EQ(two.there_block->bytes, expected);
  }
}

TEST(FabricMessages, a_message_without_a_receive_waits_and_delays_no_write) {
  Correspondents two(64 << 10);
  const auto sent = value_of(two.send(0, 5000));
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 64 << 10));
  EXPECT_EQ(sent.state(), RequestState::posted);
  const auto received = value_of(two.receive(0, 5000));
  EXPECT_TRUE(sent.wait(long_enough).ok());
  EXPECT_TRUE(received.wait(long_enough).ok());
}

TEST(FabricMessages, a_message_that_is_longer_than_the_receive_names_both_lengths) {
  Correspondents two(64 << 10);
  const auto received = value_of(two.receive(0, 100));
  const auto sent = value_of(two.send(0, 101));
  EXPECT_EQ(sent.wait(long_enough).code, Code::invalid_argument);
  EXPECT_NE(sent.error().message.find("100"), std::string::npos) << sent.error().message;
  EXPECT_NE(sent.error().message.find("101"), std::string::npos) << sent.error().message;
  EXPECT_EQ(received.state(), RequestState::posted);
  expect_done(two.send(0, 100));
  EXPECT_TRUE(received.wait(long_enough).ok());
}

TEST(FabricMessages, both_sides_end_at_their_time_or_when_they_are_canceled) {
  Correspondents two(4096);
  FabricPost post;
  post.timeout = 30ms;
  const auto received = value_of(two.receive(0, 100, post));
  EXPECT_EQ(received.wait(long_enough).code, Code::timed_out);
  EXPECT_NE(received.error().message.find("receive of up to 100 bytes from any peer"), std::string::npos)
      << received.error().message;
  const auto sent = value_of(two.send(0, 100, post));
  EXPECT_EQ(sent.wait(long_enough).code, Code::timed_out);
  const auto canceled = value_of(two.receive(0, 100));
  canceled.cancel();
  EXPECT_EQ(canceled.wait(long_enough).code, Code::canceled);
  const auto open = value_of(two.receive(0, 100));
  ASSERT_TRUE(two.there.deregister(two.there_block->memory));
  EXPECT_EQ(open.state(), RequestState::canceled);
}

TEST(FabricMessages, a_receiver_tells_each_message_in_order_also_if_its_function_throws) {
  Correspondents two(64 << 10);
  std::mutex mutex;
  std::condition_variable grown;
  std::vector<std::vector<std::uint8_t>> got;
  const auto receiver = value_of(two.there.receive_all(4, 1000, [&](std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex);
    const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    got.emplace_back(first, first + bytes.size());
    grown.notify_all();
    if (got.size() == 3) throw std::runtime_error("of the test");
  }));
  constexpr std::uint64_t count = 40;
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_TRUE(two.send(i * 10, 900 + i));
  std::unique_lock lock(mutex);
  ASSERT_TRUE(grown.wait_for(lock, long_enough, [&] { return got.size() == count; }));
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto* const sent = two.here_block->bytes.data() + i * 10;
    EXPECT_EQ(got[i], std::vector<std::uint8_t>(sent, sent + 900 + i)) << i;
  }
  lock.unlock();
  receiver.stop();
  EXPECT_EQ(two.there.counters().callbacks_failed, 1U);
}

TEST(FabricMessages, a_receiver_goes_on_while_the_caller_has_as_many_posts_as_may_run) {
  Correspondents two(4096);
  fabric::Worker& worker = fabric::Core::of(two.there)->worker(0);
  int taken = 0;
  std::promise<void> first, second;
  int got = 0;
  const auto receiver = value_of(two.there.receive_all(1, 10, [&](std::span<const std::byte>) {
    if (++got == 2) return second.set_value();
    while (worker.take_room()) ++taken;  // also that of the receive that has brought this message
    first.set_value();
  }));
  expect_done(two.send(0, 1));
  ASSERT_EQ(first.get_future().wait_for(long_enough), std::future_status::ready);
  expect_refused(two.receive(0, 1), Code::would_block, "too many posts");
  expect_done(two.send(1, 1));
  for (; taken > 0; --taken) worker.give_back();
  EXPECT_EQ(second.get_future().wait_for(long_enough), std::future_status::ready) << "it is deaf";
}

TEST(FabricMessages, what_cannot_be_a_message_is_refused) {
  Correspondents two(4096);
  FabricPost counted;
  counted.immediate = {1, 0};
  expect_refused(two.send(0, 1, counted), Code::invalid_argument, "no immediate");
  expect_refused(two.send(4096, 1), Code::invalid_argument, "of the source");
  expect_refused(two.receive(0, 4097), Code::invalid_argument, "of the target");
  expect_refused(two.here.send(FabricPeer(), two.here_block->memory, 0, 1), Code::invalid_argument, "empty");
  expect_refused(two.there.receive_all(0, 1, [](auto) {}), Code::invalid_argument, "at least one buffer");
  expect_refused(two.there.receive_all(1, 1, nullptr), Code::invalid_argument, "a function");
}

}  // namespace
}  // namespace headrace::test_fabric
