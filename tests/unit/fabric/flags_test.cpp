// SPDX-License-Identifier: Apache-2.0
// Flags: words that grow with the rounds of an expectation, for kernels and streams of GPUs.
#include "fabric/core.hpp"
#include "fabric/expectations.hpp"
#include "gpu/device_memory.hpp"
#include "support/child_ending.hpp"
#include "support/fake_cuda.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <headrace/device/fabric.cuh>

#include <unistd.h>

#include <algorithm>
#include <thread>

namespace headrace::test_fabric {
namespace {

using device::Scope;
using device::wait_flag;
using device::Waited;
using fabric::Callbacks;
using fabric::Expectations;
using fabric::FlagMaker;

constexpr std::int64_t long_ns = std::chrono::nanoseconds(long_enough).count();

/// Expectations without NICs, with GPUs of the fake driver.
struct FlagTable {
  void flag_of(Immediate at, std::uint64_t each, const FabricFlagPlace& place = {}) {
    expectation = value_of(all->expect(at, each));
    held = value_of(expectation->flag(place));
  }
  [[nodiscard]] std::uint64_t value() const { return held->flag().value(); }
  [[nodiscard]] const std::uint64_t* word() const {
    return reinterpret_cast<const std::uint64_t*>(held->flag().address());
  }

  cuda::FakeCuda fake{2};
  std::shared_ptr<Callbacks> callbacks = std::make_shared<Callbacks>();
  std::shared_ptr<FlagMaker> maker = std::make_shared<FlagMaker>([this] { return fake.load(); });
  std::shared_ptr<Expectations> all =
      std::make_shared<Expectations>(callbacks, std::make_shared<const ForkGuard>(), maker);
  std::shared_ptr<fabric::Expectation> expectation;
  std::shared_ptr<const fabric::HeldFlag> held;
};

gpu::DeviceMemory memory_of_gpu(cuda::FakeCuda& fake, int device) {
  return value_of(gpu::DeviceMemory::allocate(value_of(gpu::Device::open(*fake.load(), device)), 64));
}

FabricFlagPlace place_in(const gpu::DeviceMemory& memory, int device, std::size_t at_byte = 0) {
  return {.device = device, .gpu_memory = memory.address() + at_byte};
}

TEST(FabricFlags, a_flag_shows_the_rounds_from_before_and_after_it_was_made) {
  FlagTable table;
  table.all->arrived({1, 0}, 5);
  table.flag_of({1, 0}, 2);
  EXPECT_EQ(table.value(), 2U);
  EXPECT_FALSE(table.held->flag().device());
  table.all->arrived({1, 0}, 3);
  EXPECT_EQ(table.value(), 4U);
  EXPECT_EQ(device::read_flag(table.word()), 4U);
}

TEST(FabricFlags, the_end_of_an_expectation_is_a_bit_and_ends_waits) {
  FlagTable table;
  table.flag_of({1, 0}, 1);
  table.all->arrived({1, 0}, 3);
  EXPECT_EQ(wait_flag<Scope::thread>(table.word(), 3, 0), Waited::reached);
  EXPECT_EQ(wait_flag<Scope::thread>(table.word(), 4, 0), Waited::late);
  std::thread ending([&] { table.expectation->take_remover()(); });
  EXPECT_EQ(wait_flag<Scope::thread>(table.word(), 4, -1), Waited::closed);
  ending.join();
  EXPECT_EQ(table.value(), FabricFlag::ended | 3);
  EXPECT_EQ(wait_flag<Scope::thread>(table.word(), 3, 0), Waited::reached) << "rounds that were full stay";
  // The comparison of cuStreamWaitValue64 with GEQ: stream waits go on.
  EXPECT_GE(static_cast<std::int64_t>(table.value() - 1'000'000), 0);
  EXPECT_EQ(table.expectation->flag({}).code(), Code::invalid_argument);
}

TEST(FabricFlags, pinned_memory_is_kept_for_the_next_flag_and_freed_at_the_end) {
  cuda::FakeCuda fake;
  const auto before = fake.live();
  {
    const auto pool = std::make_shared<FlagMaker>([&fake] { return fake.load(); });
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::unique_ptr<fabric::Flag>> flags;
      for (int i = 0; i < 64; ++i) flags.push_back(value_of(pool->make({.device = 0})));
      EXPECT_EQ(flags.front()->value(), 0U) << "of its last user's value nothing is left";
      EXPECT_TRUE(flags.front()->raise_to(7));
      EXPECT_EQ(fake.live().pinned, before.pinned + 1);
    }
    const auto plain = value_of(pool->make({}));
    EXPECT_EQ(fake.live().pinned, before.pinned + 1);
  }
  EXPECT_EQ(fake.live(), before);
}

TEST(FabricFlags, a_flag_in_gpu_memory_of_the_caller_is_stored_by_a_stream) {
  FlagTable table;
  const auto memory = memory_of_gpu(table.fake, 1);
  table.all->arrived({1, 0}, 1);
  table.flag_of({1, 0}, 1, place_in(memory, 1, 8));
  EXPECT_TRUE(table.held->flag().in_gpu_memory());
  EXPECT_EQ(table.held->flag().device(), 1);
  EXPECT_EQ(table.held->flag().address(), memory.address() + 8);
  EXPECT_EQ(*table.word(), 1U);
  table.fake.hold();
  table.all->arrived({1, 0}, 4);
  EXPECT_EQ(*table.word(), 1U) << "the worker does not wait for the GPU";
  table.fake.release();
  EXPECT_EQ(*table.word(), 5U);
  EXPECT_EQ(table.value(), 5U);
}

TEST(FabricFlags, the_last_handle_of_a_flag_waits_for_the_last_store_in_the_callers_memory) {
  FlagTable table;
  const auto memory = memory_of_gpu(table.fake, 0);
  table.flag_of({1, 0}, 1, place_in(memory, 0));
  const std::uint64_t* const word = table.word();
  table.fake.hold();
  table.all->arrived({1, 0}, 1);
  std::thread releasing([&] { table.fake.release(); });
  table.held.reset();
  EXPECT_EQ(*word, 1U);
  releasing.join();
  table.all->arrived({1, 0}, 1);
  EXPECT_EQ(*word, 1U) << "nothing is stored any more";
}

TEST(FabricFlags, a_gpu_that_fails_is_told_once_and_arrivals_go_on) {
  FlagTable table;
  std::vector<Error> errors;
  table.callbacks->on_error([&](const Error& error) { errors.push_back(error); });
  const auto memory = memory_of_gpu(table.fake, 0);
  table.flag_of({9, 0}, 1, place_in(memory, 0));
  const auto other = value_of(table.expectation->flag({.device = 0}));
  table.fake.fail("cuStreamWriteValue64", cuda::Outcome::invalid_value, 1, 1);
  table.all->arrived({9, 0}, 1);
  table.all->arrived({9, 0}, 1);
  EXPECT_EQ(other->flag().value(), 2U);
  EXPECT_EQ(table.expectation->rounds().load(), 2U);
  table.callbacks->close();
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_NE(errors[0].message.find("flag of immediate 9"), std::string::npos) << errors[0].message;
}

TEST(FabricFlags, what_no_gpu_sees_is_refused) {
  FlagTable table;
  const auto memory = memory_of_gpu(table.fake, 0);
  const auto expectation = value_of(table.all->expect({1, 0}, 1));
  expect_refused(expectation->flag(place_in(memory, 0, 4)), Code::invalid_argument, "not aligned");
  expect_refused(expectation->flag(place_in(memory, 1)), Code::invalid_argument, "not in memory of GPU 1");
  expect_refused(expectation->flag({.device = {}, .gpu_memory = memory.address()}), Code::invalid_argument,
                 "give its device");
  expect_refused(expectation->flag({.device = 0, .gpu_memory = 4096}), Code::not_found, "knows no memory");
  expect_refused(expectation->flag({.device = 7}), Code::invalid_argument, "7");
}

TEST(FabricFlags, a_machine_without_a_driver_says_so) {
  const auto maker = std::make_shared<FlagMaker>(
      [] { return Result<cuda::DriverTable>(make_error(Code::not_supported, "there is no driver")); });
  expect_refused(maker->make({.device = 0}), Code::not_supported, "there is no driver");
  EXPECT_TRUE(maker->make({}));
}

/// CPU threads in the place of kernels: the thread sanitizer sees what orders bytes and flag.
TEST(FabricFlags, who_has_waited_for_a_flag_reads_the_bytes_of_its_rounds) {
  constexpr std::uint64_t rounds = 60, bytes = 777;
  TwoFabrics two(bytes);
  const auto expectation = value_of(two.there.expect({3, 0}, 1));
  const auto flag = value_of(expectation.flag());
  const auto* const word = reinterpret_cast<const std::uint64_t*>(flag.address());
  std::vector<std::uint8_t> sent(bytes);
  const auto source = value_of(two.here.register_memory({.address = sent.data(), .length_bytes = bytes}));
  FabricPost post;
  post.immediate = Immediate{3, 0};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::ranges::fill(sent, static_cast<std::uint8_t>(round));
    expect_done(two.here.write(source, 0, two.target(), 0, bytes, post));
    ASSERT_EQ(wait_flag<Scope::thread>(word, round, long_ns), Waited::reached);
    ASSERT_EQ(two.there_block->bytes, sent) << "round " << round;
  }
  std::thread closing([&] { two.there.close(); });
  EXPECT_EQ(wait_flag<Scope::thread>(word, rounds + 1, long_ns), Waited::closed);
  closing.join();
}

TEST(FabricFlags, a_forked_child_leaves_the_flag_to_its_parent) {
  auto fabric = open_at({"127.0.0.1"});
  const auto expectation = value_of(fabric.expect({1, 0}, 1));
  auto flag = std::make_unique<FabricFlag>(value_of(expectation.flag()));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = expectation.flag().code() == Code::invalid_argument;
    flag.reset();
    ::_exit(refused ? 0 : 1);
  }
  EXPECT_TRUE(test::ends_well(child));
}

}  // namespace
}  // namespace headrace::test_fabric
