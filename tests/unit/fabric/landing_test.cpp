// SPDX-License-Identifier: Apache-2.0
// Messages into memory of a GPU, over the fake driver: they come over sockets and over shared memory.
#include "fabric/landing.hpp"

#include "unit/fabric/gpu_fabrics.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

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
  expect_refused(two.there.send(back, two.memory, 0, 10), Code::not_supported, "sent from host memory");
}

}  // namespace
}  // namespace headrace::test_fabric
