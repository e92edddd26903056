// SPDX-License-Identifier: Apache-2.0
// Queues of commands, with CPU threads in the place of kernels: the protocol, which the thread sanitizer
// sees, and lies in the ring.
#include "fabric/core.hpp"
#include "support/child_ending.hpp"
#include "support/fake_cuda.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <headrace/device/fabric.cuh>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

namespace headrace::test_fabric {
namespace {

using device::Commands;
using device::Scope;
using device::Waited;

constexpr std::uint64_t unit_bytes = 64;

headrace_fabric_queue_v1* handle_of(const FabricCommandQueue& queue) {
  return reinterpret_cast<headrace_fabric_queue_v1*>(queue.address());
}

std::uint64_t post(const FabricCommandQueue& queue, std::uint32_t write, std::uint32_t first,
                   std::uint32_t count) {
  return Commands(handle_of(queue)).post<Scope::thread>(write, first, count);
}
Waited wait(const FabricCommandQueue& queue, std::uint64_t number) {
  return Commands(handle_of(queue)).wait<Scope::thread>(number);
}

/// Rows here, as many there, and a list with one write of all of them.
struct QueueSides {
  explicit QueueSides(std::uint32_t units, FabricQueueOptions options = {}, std::uint32_t writes = 1)
      : two(units * unit_bytes) {
    two.here.on_error([this](const Error& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    });
    FabricQueueWrite write;
    write.from = two.here_block->memory;
    write.to = two.target();
    write.unit_bytes = unit_bytes;
    write.units = units;
    write.post.immediate = Immediate{1, 0};
    write.post.count_by = FabricCountBy::page;
    list.assign(writes, write);
    if (!options.timeout || *options.timeout > 1s) options.timeout = long_enough;
    queue = value_of(two.here.command_queue(list, options));
  }
  [[nodiscard]] bool same(std::size_t from_byte, std::size_t bytes) const {
    return std::memcmp(&two.here_block->bytes[from_byte], &two.there_block->bytes[from_byte], bytes) == 0;
  }
  std::vector<Error> errors_now() {
    const std::lock_guard lock(mutex);
    return errors;
  }

  std::mutex mutex;
  std::vector<Error> errors;
  TwoFabrics two;
  std::vector<FabricQueueWrite> list;
  FabricCommandQueue queue;
};

TEST(FabricCommands, a_command_moves_the_units_that_it_names_and_they_are_counted) {
  QueueSides sides(10);
  const auto before = sides.two.there_block->bytes;
  const auto arrivals = value_of(sides.two.there.expect({1, 0}, 3));
  EXPECT_EQ(post(sides.queue, 0, 4, 3), 1U);
  EXPECT_EQ(wait(sides.queue, 1), Waited::reached);
  ASSERT_TRUE(arrivals.wait(long_enough).ok());
  EXPECT_TRUE(sides.same(4 * unit_bytes, 3 * unit_bytes));
  EXPECT_TRUE(
      std::equal(before.begin(), before.begin() + 4 * unit_bytes, sides.two.there_block->bytes.begin()));
  EXPECT_TRUE(std::equal(before.begin() + 7 * unit_bytes, before.end(),
                         sides.two.there_block->bytes.begin() + 7 * unit_bytes));
  EXPECT_EQ(post(sides.queue, 0, 0, 10), 2U);
  EXPECT_EQ(post(sides.queue, 0, 10, 0), 3U) << "nothing, which counts nothing";
  EXPECT_EQ(wait(sides.queue, 3), Waited::reached);
  EXPECT_TRUE(sides.same(0, 10 * unit_bytes));
  EXPECT_EQ(sides.queue.ended(), 3U);
  EXPECT_EQ(sides.queue.failed(), 0U);
  EXPECT_FALSE(sides.queue.status());
}

TEST(FabricCommands, what_was_written_before_a_command_is_sent_and_memory_is_used_again_after_its_end) {
  constexpr unsigned threads = 3, rounds = 60;
  FabricQueueOptions options;
  options.capacity = 2;  // fewer than threads: they wait for slots
  QueueSides sides(threads, options);
  const auto arrivals = value_of(sides.two.there.expect({1, 0}, 1));
  std::vector<std::thread> kernels;
  std::atomic<unsigned> wrong = 0;
  for (unsigned kernel = 0; kernel < threads; ++kernel)
    kernels.emplace_back([&, kernel] {
      auto* const row = &sides.two.here_block->bytes[kernel * unit_bytes];
      for (unsigned round = 1; round <= rounds; ++round) {
        std::fill(row, row + unit_bytes, static_cast<std::uint8_t>(round));
        const std::uint64_t number = post(sides.queue, 0, kernel, 1);
        if (number == 0 || wait(sides.queue, number) != Waited::reached) ++wrong;
      }
    });
  for (auto& kernel : kernels) kernel.join();
  EXPECT_EQ(wrong, 0U);
  for (unsigned i = 0; i < threads * rounds; ++i) ASSERT_TRUE(arrivals.wait(long_enough).ok());
  EXPECT_EQ(arrivals.rounds().load(), threads * rounds);
  EXPECT_EQ(sides.queue.ended(), threads * rounds);
  EXPECT_TRUE(sides.same(0, threads * unit_bytes));
}

/// The order of a queue: of two commands into the same row the later one is begun later. Over one card its
/// bytes are also placed later.
TEST(FabricCommands, commands_are_carried_in_the_order_of_their_numbers) {
  FabricQueueOptions options;
  options.capacity = 4;
  QueueSides sides(40, options);
  std::vector<FabricQueueWrite> list(40, sides.list.front());
  for (std::uint32_t i = 0; i < 40; ++i) {
    list[i].from_offset = i * unit_bytes;  // to the same row
    list[i].units = 1;
    list[i].post.spread = FabricSpread::pinned;
  }
  const auto queue = value_of(sides.two.here.command_queue(list, options));
  std::uint64_t last = 0;
  for (std::uint32_t i = 0; i < 40; ++i) last = post(queue, i, 0, 1);
  EXPECT_EQ(last, 40U);
  EXPECT_EQ(wait(queue, last), Waited::reached);
  EXPECT_EQ(std::memcmp(&sides.two.here_block->bytes[39 * unit_bytes], sides.two.there_block->bytes.data(),
                        unit_bytes),
            0);
}

TEST(FabricCommands, lies_in_the_ring_are_told_and_nothing_else_happens) {
  QueueSides sides(10);
  const auto before = sides.two.there_block->bytes;
  EXPECT_EQ(post(sides.queue, 7, 0, 1), 1U);
  EXPECT_EQ(post(sides.queue, 0, 9, 2), 2U);
  EXPECT_EQ(post(sides.queue, 0, 11, 0), 3U);
  EXPECT_EQ(post(sides.queue, 0, UINT32_MAX, UINT32_MAX), 4U);
  EXPECT_EQ(wait(sides.queue, 4), Waited::reached);
  EXPECT_EQ(sides.queue.failed(), 4U);
  EXPECT_EQ(Commands(handle_of(sides.queue)).failed(), 4U);
  EXPECT_EQ(sides.two.there_block->bytes, before);
  EXPECT_EQ(post(sides.queue, 0, 0, 10), 5U);
  EXPECT_EQ(wait(sides.queue, 5), Waited::reached);
  EXPECT_TRUE(sides.same(0, 10 * unit_bytes));
  sides.two.here.close();
  const auto errors = sides.errors_now();
  ASSERT_EQ(errors.size(), 4U);
  EXPECT_NE(errors[0].message.find("names write 7: its list has 1"), std::string::npos) << errors[0].message;
  EXPECT_NE(errors[1].message.find("2 units from unit 9 on of write 0, which has 10"), std::string::npos)
      << errors[1].message;
}

/// A ring whose bytes a kernel has spoiled: a turn that is not the next one is no command.
TEST(FabricCommands, a_slot_of_another_turn_is_not_taken) {
  QueueSides sides(10);
  auto* const ring = reinterpret_cast<headrace_fabric_command_v1*>(handle_of(sides.queue)->commands);
  std::atomic_ref(ring[0].write).store(2, std::memory_order_release);
  std::atomic_ref(ring[1].write).store(1, std::memory_order_release);
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(sides.queue.ended(), 0U);
  std::atomic_ref(ring[0].write).store(1, std::memory_order_release);
  while (sides.queue.ended() < 2) std::this_thread::yield();
}

TEST(FabricCommands, a_kernel_that_finds_no_slot_in_time_leaves_a_status) {
  FabricQueueOptions options;
  options.capacity = 2;
  options.timeout = 1ms;
  QueueSides sides(2, options);
  auto* const handle = handle_of(sides.queue);
  // Two commands whose slots are not filled, as if their kernels were slow.
  std::atomic_ref(handle->posted).store(2);
  EXPECT_EQ(post(sides.queue, 0, 0, 1), 0U);
  EXPECT_EQ(wait(sides.queue, 2), Waited::late);
  const auto status = sides.queue.status();
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->full) << "the first one that was late";
  EXPECT_EQ(status->command, 3U);
  EXPECT_EQ(status->ended, 0U);
}

TEST(FabricCommands, the_close_of_the_fabric_ends_kernels_that_wait) {
  FabricQueueOptions options;
  options.capacity = 1;
  QueueSides sides(2, options);
  std::atomic_ref(handle_of(sides.queue)->posted).store(1);
  auto finds_no_slot = std::async(std::launch::async, [&] { return post(sides.queue, 0, 0, 1); });
  auto waits = std::async(std::launch::async, [&] { return wait(sides.queue, 1); });
  sides.two.here.close();
  EXPECT_EQ(finds_no_slot.get(), 0U);
  EXPECT_EQ(waits.get(), Waited::closed);
  expect_refused(sides.two.here.command_queue(sides.list), Code::invalid_argument, "closed");
}

/// As a driver's call does that gives memory back.
TEST(FabricCommands, kernels_leave_at_the_close_while_the_worker_waits_for_them) {
  FabricQueueOptions options;
  options.capacity = 1;
  QueueSides sides(2, options);
  const auto flag = value_of(value_of(sides.two.here.expect({9, 0}, 1)).flag());
  std::atomic_ref(handle_of(sides.queue)->posted).store(1);
  std::promise<void> begun;
  ASSERT_TRUE(fabric::Core::of(sides.two.here)->worker(0).push([&](fabric::Carrier&) {
    auto waits_for_command = std::async(std::launch::async, [&] { return wait(sides.queue, 1); });
    auto waits_for_flag = std::async(std::launch::async, [&] {
      return device::wait_flag<Scope::thread>(reinterpret_cast<const std::uint64_t*>(flag.address()), 1, -1);
    });
    begun.set_value();
    EXPECT_EQ(waits_for_command.get(), Waited::closed);
    EXPECT_EQ(waits_for_flag.get(), Waited::closed);
  }));
  begun.get_future().wait();
  sides.two.here.close();
}

TEST(FabricCommands, commands_of_a_queue_that_was_closed_are_carried) {
  QueueSides sides(100);
  const auto arrivals = value_of(sides.two.there.expect({1, 0}, 1));
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_NE(post(sides.queue, 0, i, 1), 0U);
  sides.queue = {};
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(arrivals.wait(long_enough).ok());
  EXPECT_TRUE(sides.same(0, 100 * unit_bytes));
}

TEST(FabricCommands, a_command_that_fails_is_told_and_its_memory_is_quiet) {
  QueueSides sides(4);
  ASSERT_TRUE(sides.two.here.deregister(sides.two.here_block->memory));
  EXPECT_EQ(post(sides.queue, 0, 0, 4), 1U);
  EXPECT_EQ(wait(sides.queue, 1), Waited::reached);
  EXPECT_EQ(sides.queue.failed(), 1U);
  sides.two.here.close();
  const auto errors = sides.errors_now();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_NE(errors[0].message.find("command 1 of a queue, write 0"), std::string::npos) << errors[0].message;
}

TEST(FabricCommands, a_list_that_cannot_be_is_refused) {
  QueueSides sides(4, {}, 2);
  auto& here = sides.two.here;
  expect_refused(here.command_queue({}), Code::invalid_argument, "at least one write");
  for (const std::uint32_t capacity : {0U, 4097U})
    expect_refused(here.command_queue(sides.list, {.device = {}, .capacity = capacity}),
                   Code::invalid_argument, "1 to 4096 slots");
  auto list = sides.list;
  list[1].units = 5;
  expect_refused(here.command_queue(list), Code::invalid_argument, "write 1 of the queue");
  list[1].units = 2;
  list[1].unit_bytes = UINT64_MAX;
  expect_refused(here.command_queue(list), Code::invalid_argument, "more than 2^64 bytes");
  list[1] = {};
  expect_refused(here.command_queue(list), Code::invalid_argument, "the memory is empty");
}

TEST(FabricCommands, a_queue_of_a_gpu_has_its_handle_there_and_frees_it) {
  cuda::FakeCuda fake;
  const auto before = fake.live();
  fabric::CoreSetup setup;
  setup.driver = [&fake] { return fake.load(); };
  {
    auto plan =
        value_of(fabric::plan_groups({.groups = {{.nics = {"127.0.0.1"}}}}, fabric::this_machine(false)));
    std::vector<fabric::OpenGroup> groups;
    groups.push_back(value_of(fabric::open_nics(plan.front(), {})));
    auto fabric = value_of(fabric::Core::open(std::move(groups), setup));
    Block source(fabric, {1, 2, 3, 4}, FabricAccess::local);
    Block target(fabric, {0, 0, 0, 0}, FabricAccess::writable);
    FabricQueueWrite write;
    write.from = source.memory;
    write.to = target.memory.descriptor();
    write.unit_bytes = 4;
    const auto queue = value_of(fabric.command_queue({&write, 1}, {.device = 0}));
    EXPECT_EQ(queue.device(), 0);
    EXPECT_TRUE(fake.reachable(queue.address(), sizeof(headrace_fabric_queue_v1)));
    EXPECT_EQ(fake.live().allocations, before.allocations + 1);
    EXPECT_EQ(fake.live().pinned, before.pinned + 1);
    EXPECT_EQ(post(queue, 0, 0, 1), 1U);  // memory of the fake GPU is the host's
    EXPECT_EQ(wait(queue, 1), Waited::reached);
    EXPECT_EQ(target.bytes, source.bytes);
    fabric.close();
  }
  EXPECT_EQ(fake.live(), before);
}

TEST(FabricCommands, a_forked_child_leaves_the_queue_to_its_parent) {
  QueueSides sides(4);
  auto queue = std::make_unique<FabricCommandQueue>(std::exchange(sides.queue, {}));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = sides.two.here.command_queue(sides.list).code() == Code::invalid_argument;
    queue.reset();
    ::_exit(refused ? 0 : 1);
  }
  EXPECT_TRUE(test::ends_well(child));
  EXPECT_EQ(post(*queue, 0, 0, 4), 1U);
  EXPECT_EQ(wait(*queue, 1), Waited::reached);
}

}  // namespace
}  // namespace headrace::test_fabric
