// SPDX-License-Identifier: Apache-2.0
// Messages into and out of memory of a GPU, over the fake driver, by sockets and by shared memory.
#include "fabric/staged_message.hpp"

#include "unit/fabric/gpu_fabrics.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace headrace::test_fabric {
namespace {

class FabricLanding : public testing::TestWithParam<By> {};
INSTANTIATE_TEST_SUITE_P(, FabricLanding, testing::Values(By::sockets, By::shared_memory),
                         [](const auto& by) {
                           return by.param == By::sockets ? "over_sockets" : "over_shared_memory";
                         });

TEST_P(FabricLanding, messages_of_all_lengths_lie_in_the_memory_of_the_gpu) {
  GpuFabrics two(GetParam());
  for (const std::uint64_t bytes : {0U, 1U, 1000U, 5000U, 300'000U, (3U << 20) + 5}) {
    const auto received = value_of(two.receive(7, bytes + 100));
    expect_done(two.send(13, bytes));
    ASSERT_TRUE(received.wait(long_enough).ok()) << received.error().message;
    EXPECT_EQ(received.bytes(), bytes);
    EXPECT_TRUE(two.has_come(13, 7, bytes)) << bytes;
    EXPECT_EQ(two.content()[6], 0);
    EXPECT_EQ(two.content()[7 + bytes], 0) << "a byte behind the message";
    std::memset(two.content(), 0, room_bytes);
  }
}

TEST_P(FabricLanding, a_receive_is_done_when_the_gpu_has_copied_and_others_go_on_meanwhile) {
  GpuFabrics two(GetParam());
  Block target(two.there, std::vector<std::uint8_t>(100'000), FabricAccess::writable);
  two.fake.hold();
  const auto received = value_of(two.receive(0, 5000));
  expect_done(two.send(0, 5000));
  expect_done(two.here.write(two.block.memory, 0, target.memory.descriptor(), 0, 100'000));
  EXPECT_EQ(received.state(), RequestState::posted);
  two.fake.release();
  ASSERT_TRUE(received.wait(long_enough).ok());
  EXPECT_TRUE(two.has_come(0, 0, 5000));
  EXPECT_TRUE(std::equal(target.bytes.begin(), target.bytes.end(), two.block.bytes.begin()));
}

TEST(FabricLandings, receives_that_end_without_a_message_leave_the_memory_alone) {
  GpuFabrics two;
  FabricPost post;
  post.timeout = 30ms;
  EXPECT_EQ(value_of(two.receive(0, 100, post)).wait(long_enough).code, Code::timed_out);
  const auto canceled = value_of(two.receive(0, 100));
  canceled.cancel();
  EXPECT_EQ(canceled.wait(long_enough).code, Code::canceled);
  const auto received = value_of(two.receive(0, 100));
  EXPECT_EQ(value_of(two.send(0, 101)).wait(long_enough).code, Code::invalid_argument);
  EXPECT_EQ(received.state(), RequestState::posted);
  ASSERT_TRUE(two.there.deregister(two.memory));
  EXPECT_EQ(received.state(), RequestState::canceled);
  EXPECT_EQ(std::count(two.content(), two.content() + room_bytes, 0), static_cast<long>(room_bytes));
}

TEST(FabricLandings, deregistering_and_closing_wait_for_the_copy) {
  for (const bool closes : {false, true}) {
    GpuFabrics two;
    two.fake.hold();
    const auto received = value_of(two.receive(0, 5000));
    expect_done(two.send(0, 5000));
    while (two.fake.calls("cuMemcpyAsync") == 0) std::this_thread::yield();
    std::atomic<bool> over = false;
    std::thread other([&] {
      if (closes)
        two.there.close();
      else
        EXPECT_TRUE(two.there.deregister(two.memory));
      over = true;
    });
    while (received.state() == RequestState::posted) std::this_thread::yield();
    EXPECT_FALSE(over);
    two.fake.release();
    other.join();
    EXPECT_TRUE(two.has_come(0, 0, 5000));
    std::memset(two.content(), 0, room_bytes);  // its next use
  }
}

TEST(FabricLandings, memory_that_was_freed_since_it_was_registered_is_not_written) {
  GpuFabrics two;
  const auto received = value_of(two.receive(0, 5000));
  const auto other = two.free_and_allocate_again();
  auto* const content = reinterpret_cast<std::uint8_t*>(other.address());
  std::memset(content, 3, room_bytes);
  expect_done(two.send(0, 5000));
  EXPECT_EQ(received.wait(long_enough).code, Code::not_found);
  EXPECT_NE(received.error().message.find("were freed, and other memory has this address now"),
            std::string::npos)
      << received.error().message;
  EXPECT_EQ(std::count(content, content + room_bytes, 3), static_cast<long>(room_bytes));
}

TEST(FabricLandings, what_cannot_be_is_refused) {
  GpuFabrics two;
  expect_refused(two.receive(room_bytes - 9, 10), Code::invalid_argument, "of the target");
  const auto back = value_of(two.there.connect(two.here.address()));
  expect_refused(two.there.send(back, two.memory, room_bytes - 9, 10), Code::invalid_argument,
                 "of the source");
}

// ------------------------------------------------------------------ out of memory of a GPU

constexpr std::uint64_t most_staged_bytes = 64 << 20;  // of the messages to a peer

/// Memory of a GPU is sent, and comes into host memory.
class Outwards : public GpuFabrics {
 public:
  explicit Outwards(By by = By::sockets) : GpuFabrics(by) {
    std::memcpy(content(), block.bytes.data(), room_bytes);
  }
  ~Outwards() { here.close(); }  // a receive may not have ended
  Outwards(const Outwards&) = delete;
  Outwards& operator=(const Outwards&) = delete;

  Result<FabricWork> send_out(std::uint64_t from, std::uint64_t bytes, const FabricPost& post = {}) {
    return there.send(back, memory, from, bytes, post);
  }
  Result<FabricWork> receive_here(std::uint64_t to, std::uint64_t bytes) {
    return here.receive(target.memory, to, bytes);
  }
  [[nodiscard]] bool has_left(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return std::equal(target.bytes.begin() + static_cast<long>(to),
                      target.bytes.begin() + static_cast<long>(to + bytes), content() + from);
  }
  void wait_for_copy() {
    while (fake.calls("cuMemcpyAsync") == 0) std::this_thread::yield();
  }

  Block target{here, std::vector<std::uint8_t>(room_bytes), FabricAccess::local};
  FabricPeer back = value_of(there.connect(here.address()));
};

TEST_P(FabricLanding, messages_of_all_lengths_leave_the_memory_of_the_gpu) {
  Outwards two(GetParam());
  for (const std::uint64_t bytes : {0U, 1U, 1000U, 5000U, 300'000U, (3U << 20) + 5}) {
    const auto received = value_of(two.receive_here(7, bytes + 100));
    expect_done(two.send_out(13, bytes));
    ASSERT_TRUE(received.wait(long_enough).ok()) << received.error().message;
    EXPECT_EQ(received.bytes(), bytes);
    EXPECT_TRUE(two.has_left(13, 7, bytes)) << bytes;
    EXPECT_EQ(two.target.bytes[7 + bytes], 0) << "a byte behind the message";
    std::ranges::fill(two.target.bytes, 0);
  }
}

TEST_P(FabricLanding, messages_out_of_memory_of_a_gpu_and_of_the_host_come_in_the_order_of_their_posts) {
  Outwards two(GetParam());
  Block host(two.there, random_bytes(100, two.random), FabricAccess::local);
  two.fake.hold();
  std::vector<FabricWork> works;
  for (std::uint64_t i = 0; i < 20; ++i) {
    works.push_back(value_of(two.receive_here(i * 2000, 1500 + i)));
    works.push_back(
        value_of(i % 3 == 1 ? two.there.send(two.back, host.memory, 0, i) : two.send_out(i, 1500 + i)));
  }
  two.fake.release();
  for (const FabricWork& work : works) EXPECT_TRUE(work.wait(long_enough).ok()) << work.error().message;
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(works[2 * i].bytes(), i % 3 == 1 ? i : 1500 + i);
    if (i % 3 != 1) EXPECT_TRUE(two.has_left(i, i * 2000, 1500 + i)) << i;
  }
}

TEST(FabricLandings, a_message_waits_for_its_copy_and_other_posts_go_on_meanwhile) {
  Outwards two;
  Block source(two.there, random_bytes(100'000, two.random), FabricAccess::local);
  Block target(two.here, std::vector<std::uint8_t>(100'000), FabricAccess::writable);
  two.fake.hold();
  const auto received = value_of(two.receive_here(0, 5000));
  const auto sent = value_of(two.send_out(0, 5000));
  two.wait_for_copy();
  expect_done(two.there.write(source.memory, 0, target.memory.descriptor(), 0, 100'000));
  EXPECT_EQ(sent.state(), RequestState::posted);
  EXPECT_EQ(received.state(), RequestState::posted);
  two.fake.release();
  ASSERT_TRUE(sent.wait(long_enough).ok()) << sent.error().message;
  EXPECT_EQ(target.bytes, source.bytes);
}

TEST(FabricLandings, the_host_memory_of_messages_that_wait_for_a_peer_is_bounded) {
  Outwards two;
  constexpr std::uint64_t bytes = 5 << 20;
  constexpr int most = most_staged_bytes / bytes, copies_each = bytes >> 20;
  std::vector<FabricWork> sent;
  for (int i = 0; i < most + 5; ++i) sent.push_back(value_of(two.send_out(0, bytes)));
  while (two.fake.calls("cuMemcpyAsync") < most * copies_each) std::this_thread::yield();
  Fabric third = open_at({"127.0.0.1"});  // it is not held up
  Block other(third, std::vector<std::uint8_t>(5000), FabricAccess::local);
  const auto received = value_of(third.receive(other.memory, 0, 5000));
  expect_done(two.there.send(value_of(two.there.connect(third.address())), two.memory, 0, 5000));
  EXPECT_TRUE(std::equal(other.bytes.begin(), other.bytes.end(), two.content()));
  EXPECT_EQ(two.fake.calls("cuMemcpyAsync"), most * copies_each + 1) << "one more message has been copied";
  for (const FabricWork& work : sent) {
    expect_done(two.receive_here(0, bytes));
    EXPECT_TRUE(work.wait(long_enough).ok()) << work.error().message;
    EXPECT_TRUE(two.has_left(0, 0, bytes));
    std::ranges::fill(two.target.bytes, 0);
  }
}

TEST(FabricLandings, a_send_that_is_canceled_or_late_ends_when_nothing_reads_the_memory) {
  FabricPost late;
  late.timeout = 500ms;  // its copy has to begin by then, also on a busy machine
  for (const Code code : {Code::canceled, Code::timed_out}) {
    Outwards two;
    const FabricPost post = code == Code::canceled ? FabricPost{} : late;
    const auto offered = value_of(two.send_out(0, 5000, post));  // nothing receives it
    two.wait_for_copy();
    if (code == Code::canceled) offered.cancel();
    EXPECT_EQ(offered.wait(long_enough).code, code);
    two.fake.hold();
    const auto copied = value_of(two.send_out(0, 5000, post));
    const auto behind = value_of(two.send_out(0, 5000, post));
    while (two.fake.calls("cuMemcpyAsync") < 2) std::this_thread::yield();
    if (code == Code::canceled) {
      behind.cancel();
      copied.cancel();
    }
    EXPECT_EQ(behind.wait(long_enough).code, code) << "its copy has not begun";
    while (copied.state() == RequestState::posted) std::this_thread::yield();
    EXPECT_EQ(copied.state(), RequestState::canceling);
    two.fake.release();
    EXPECT_EQ(copied.wait(long_enough).code, code);
    const auto received = value_of(two.receive_here(0, 5000));
    expect_done(two.send_out(0, 100));  // the next one comes
    EXPECT_EQ(received.wait(long_enough).code, Code::ok);
    EXPECT_EQ(received.bytes(), 100U);
  }
}

TEST(FabricLandings, deregistering_and_closing_wait_for_the_copy_of_a_send) {
  for (const bool closes : {false, true}) {
    Outwards two;
    two.fake.hold();
    const auto sent = value_of(two.send_out(0, 5000));
    const auto behind = value_of(two.send_out(0, 5000));
    two.wait_for_copy();
    std::atomic<bool> over = false;
    std::thread other([&] {
      if (closes)
        two.there.close();
      else
        EXPECT_TRUE(two.there.deregister(two.memory));
      over = true;
    });
    while (sent.state() == RequestState::posted) std::this_thread::yield();
    EXPECT_FALSE(over);
    two.fake.release();
    other.join();
    EXPECT_EQ(sent.wait(long_enough).code, Code::canceled);
    EXPECT_EQ(behind.wait(long_enough).code, Code::canceled);
  }
}

TEST(FabricLandings, a_peer_that_ends_takes_its_messages_with_it_after_their_copy) {
  for (const bool forgets : {false, true}) {
    Outwards two;
    two.fake.hold();
    const auto copied = value_of(two.send_out(0, 5000));
    const auto behind = value_of(two.send_out(0, 5000));
    two.wait_for_copy();
    if (forgets)
      EXPECT_TRUE(two.there.forget(two.back));
    else
      two.here.close();
    const Code code = forgets ? Code::canceled : Code::peer_lost;
    EXPECT_EQ(behind.wait(long_enough).code, code) << behind.error().message;
    EXPECT_EQ(copied.state(), RequestState::posted) << "the GPU still reads its memory";
    two.fake.release();
    EXPECT_EQ(copied.wait(long_enough).code, code) << copied.error().message;
    EXPECT_NE(copied.error().message.find("message of 5000 bytes to "), std::string::npos);
    if (!forgets) continue;
    const auto received = value_of(two.receive_here(0, 5000));
    expect_done(two.send_out(0, 5000));  // over a new link
    EXPECT_TRUE(received.wait(long_enough).ok());
  }
}

TEST(FabricLandings, memory_that_was_freed_since_it_was_registered_is_not_sent) {
  const std::string words = "were freed, and other memory has this address now";
  Outwards two;
  two.fake.hold();
  const auto copied = value_of(two.send_out(0, 5000));
  const auto behind = value_of(two.send_out(0, 5000));
  two.wait_for_copy();
  const auto other = two.free_and_allocate_again();
  expect_refused(two.send_out(0, 5000), Code::not_found, words);
  two.fake.release();
  EXPECT_EQ(behind.wait(long_enough).code, Code::not_found);
  EXPECT_NE(behind.error().message.find(words), std::string::npos) << behind.error().message;
  copied.cancel();
  EXPECT_EQ(copied.wait(long_enough).code, Code::canceled);
}

}  // namespace
}  // namespace headrace::test_fabric
