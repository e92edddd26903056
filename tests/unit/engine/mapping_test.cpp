// SPDX-License-Identifier: Apache-2.0
// Mappings for GPUs: the GPU that a peer's memory is mapped for, the state of a mapping after its owner has
// deregistered the region or has gone, and the time of its release. Two agents of this process with the
// backend cuda_ipc over fake GPUs.
#include "backends/fake/backend.hpp"
#include "engine/engine.hpp"
#include "gpu/stream.hpp"
#include "memory/allocation.hpp"
#include "support/fake_gpus.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr std::size_t bytes = 300'000;

class MappingTest : public testing::Test {
 protected:
  MappingTest() : here(open("here")), there(open("there")), before(driver().live()) {}
  ~MappingTest() override {
    driver().release();
    here->close();
    there->close();
    gpus().choose(0);
  }

  static test::FakeGpus& gpus() { return test::FakeGpus::of_this_process(); }
  static cuda::FakeCuda& driver() { return gpus().driver(); }
  std::shared_ptr<Engine> open(const std::string& name) { return open_on_gpus(name, folder, logger); }

  /// Registers memory at the peer and imports its metadata here.
  RegionId told(const MemoryRange& range, int memory_fd = -1) {
    const RegionId id = there->regions().add({&range, 1}, {}, {memory_fd, nullptr}).value().front().id;
    EXPECT_TRUE(here->peers().import(there->regions().exported({}).value()).ok());
    return id;
  }
  RegionId gpu_region(const test::MemorySource::Taken& memory, int device, bool writable = true) {
    std::memset(memory.base, 7, bytes);
    return told({.address = memory.base,
                 .length_bytes = bytes,
                 .kind = MemoryKind::vram,
                 .device = device,
                 .writable = writable});
  }
  Mapping map(RegionId region, int device) {
    return Mapping(here->mappings().map("there", region, 10s, device).value());
  }
  [[nodiscard]] Error refusal(RegionId region, int device) {
    const auto mapped = here->mappings().map("there", region, 10s, device);
    EXPECT_FALSE(mapped);
    return mapped ? Error{} : mapped.error();
  }
  /// What ends when the last copy of a mapping goes: a progress thread that took note of a revocation or a
  /// lost link may hold the import for a moment longer.
  [[nodiscard]] static bool soon(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::after(10s);
    while (!done() && !deadline.expired()) std::this_thread::yield();
    return done();
  }
  [[nodiscard]] int pieces() { return driver().live().mappings - before.mappings; }
  [[nodiscard]] int pinned() { return driver().live().pinned - before.pinned; }

  Logger logger;
  const test::TemporaryFolder folder;
  std::shared_ptr<Engine> here, there;
  cuda::FakeCuda::Live before;
};

TEST_F(MappingTest, a_mapping_of_gpu_memory_is_the_owners_memory_on_the_named_gpu) {
  gpus().choose(1);
  for (const auto& memory : {gpus().take_plain(bytes), gpus().take_shared(bytes)}) {
    const RegionId region = gpu_region(memory, 1);
    for (const int device : {0, 1}) {
      const Mapping mapping = map(region, device);
      EXPECT_EQ(mapping.device(), device);
      EXPECT_TRUE(mapping.alive() && mapping.writable());
      ASSERT_EQ(mapping.bytes().size(), bytes);
      EXPECT_EQ(std::memcmp(mapping.bytes().data(), memory.base, bytes), 0);
      mapping.bytes().back() = static_cast<std::byte>(40 + device);
      EXPECT_EQ(memory.base[bytes - 1], static_cast<std::byte>(40 + device));
    }
  }
}

TEST_F(MappingTest, a_mapping_of_allocated_host_memory_stays_pinned_for_the_gpu_while_a_copy_lives) {
  const Allocation allocation = Allocation::make(bytes).value();
  const RegionId region = told(
      {.address = allocation.bytes().data(), .length_bytes = allocation.bytes().size()}, allocation.fd());
  {
    std::optional<Mapping> mapping = map(region, 0);
    const Mapping copy = *mapping;
    mapping.reset();
    ASSERT_EQ(copy.bytes().size(), bytes);
    allocation.bytes()[bytes - 1] = std::byte{42};
    EXPECT_EQ(copy.bytes()[bytes - 1], std::byte{42});
    EXPECT_EQ(pinned(), 1);
    ASSERT_TRUE(there->regions().deregister({&region, 1}, 10s));
    EXPECT_FALSE(copy.alive());
    EXPECT_EQ(copy.bytes()[bytes - 1], std::byte{42}) << "a read gives the old bytes and never faults";
    EXPECT_EQ(pinned(), 1);
  }
  EXPECT_TRUE(soon([&] { return pinned() == 0; })) << pinned();
}

TEST_F(MappingTest, a_mapping_outlives_its_region_and_its_peer_and_is_released_with_its_last_copy) {
  for (const bool revoked : {true, false}) {
    const auto memory = gpus().take_shared(bytes);
    const RegionId region = gpu_region(memory, 0);
    const int unmapped = pieces();
    std::optional<Mapping> first = map(region, 0), second = map(region, 0);
    EXPECT_EQ(first->bytes().data(), second->bytes().data()) << "one import serves both";
    const int mapped = pieces();
    EXPECT_GT(mapped, unmapped);
    if (revoked) {
      ASSERT_TRUE(there->regions().deregister({&region, 1}, 10s));
      EXPECT_EQ(refusal(region, 0).code, Code::not_found);
    } else {
      there->close();
      const Deadline deadline = Deadline::after(10s);
      while (first->alive() && !deadline.expired()) (void)here->progress().poll();
    }
    EXPECT_FALSE(first->alive() || second->alive());
    EXPECT_EQ(second->bytes().front(), std::byte{7});
    first.reset();
    EXPECT_EQ(pieces(), mapped) << "the other copy still holds the mapping";
    second.reset();
    EXPECT_TRUE(soon([&] { return pieces() == unmapped; })) << pieces() << ", " << unmapped << " before";
  }
}

TEST_F(MappingTest, a_mapping_is_released_after_its_gpu_has_finished_the_queued_work) {
  const auto memory = gpus().take_shared(bytes);
  const RegionId region = gpu_region(memory, 0);
  std::optional<Mapping> mapping = map(region, 0);
  ASSERT_TRUE(there->regions().deregister({&region, 1}, 10s))
      << "after this only the mapping holds the memory";
  const auto stream = gpu::Stream::make(gpu::Device::open(driver().load().value(), 0).value()).value();
  const int mapped = pieces(), waits = driver().calls("cuCtxSynchronize");
  driver().hold();
  {
    const gpu::ContextGuard current(stream.device());
    const auto address = reinterpret_cast<cuda::Address>(mapping->bytes().data());
    ASSERT_EQ(stream.device().driver().memset_d8_async(address, 9, bytes, stream.handle()),
              cuda::Outcome::success);
  }
  std::atomic<bool> gone = false;
  std::thread letting_go([&] {
    mapping.reset();
    gone = true;
  });
  while (driver().calls("cuCtxSynchronize") == waits && !gone) std::this_thread::yield();
  EXPECT_EQ(pieces(), mapped) << "a queued kernel still uses the memory";
  driver().release();
  letting_go.join();
  EXPECT_LT(pieces(), mapped);
  EXPECT_EQ(memory.base[bytes - 1], std::byte{9});
}

TEST_F(MappingTest, a_mapping_stays_if_its_gpu_cannot_be_synchronized) {
  const auto memory = gpus().take_shared(bytes);
  const RegionId region = gpu_region(memory, 0);
  std::optional<Mapping> mapping = map(region, 0);
  ASSERT_TRUE(there->regions().deregister({&region, 1}, 10s))
      << "after this only the mapping holds the memory";
  const std::byte* const at = mapping->bytes().data();
  const int mapped = pieces(), waits = driver().calls("cuCtxSynchronize");
  driver().fail("cuCtxSynchronize", cuda::Outcome::stream_capture_unsupported);
  mapping.reset();
  EXPECT_EQ(driver().calls("cuCtxSynchronize"), waits + 1);
  EXPECT_EQ(pieces(), mapped) << "queued or captured work may use the memory";
  EXPECT_EQ(*at, std::byte{7});
}

TEST_F(MappingTest, a_mapping_of_a_read_only_region_is_not_writable) {
  const auto memory = gpus().take_shared(bytes);
  const Mapping mapping = map(gpu_region(memory, 0, false), 0);
  EXPECT_FALSE(mapping.writable());
  EXPECT_EQ(mapping.bytes().front(), std::byte{7});
}

TEST_F(MappingTest, a_mapping_of_gpu_memory_without_a_named_gpu_is_refused_with_advice) {
  const Error error = refusal(gpu_region(gpus().take_plain(bytes), 0), -1);
  EXPECT_EQ(error.code, Code::invalid_argument);
  EXPECT_THAT(error.message, HasSubstr("name the GPU that will use it"));
}

TEST_F(MappingTest, a_mapping_for_a_missing_gpu_is_refused_with_the_number_of_gpus) {
  const RegionId region = gpu_region(gpus().take_plain(bytes), 0);
  const Error beyond = refusal(region, 99);
  EXPECT_EQ(beyond.code, Code::invalid_argument);
  EXPECT_THAT(beyond.message, HasSubstr("there is no GPU 99: this process sees 2"));
  const Error below = refusal(region, -2);
  EXPECT_EQ(below.code, Code::invalid_argument);
  EXPECT_THAT(below.message, HasSubstr("there is no GPU -2"));
}

TEST_F(MappingTest, a_mapping_that_no_backend_makes_is_refused_with_the_reason_of_each) {
  for (const auto& engine : {here, there}) add_linked(*engine, *plugin::table<fake::FakeBackend>());
  std::vector<std::byte> memory(bytes);
  const RegionId registered = told({.address = memory.data(), .length_bytes = bytes});
  const Error for_gpu = refusal(registered, 0);
  EXPECT_EQ(for_gpu.code, Code::not_supported);
  EXPECT_THAT(for_gpu.message, HasSubstr("cuda_ipc: "));
  EXPECT_THAT(for_gpu.message, HasSubstr("GPUs of other processes map what `allocate` made"));
  EXPECT_THAT(for_gpu.message, HasSubstr("fake maps for the CPU only, not for device 0"));
  const Error for_cpu = refusal(registered, -1);
  EXPECT_EQ(for_cpu.code, Code::not_supported);
  EXPECT_THAT(for_cpu.message, HasSubstr("cuda_ipc: it maps memory for GPUs, not for the CPU"));
  EXPECT_THAT(for_cpu.message, HasSubstr("merely registered"));
}

}  // namespace
}  // namespace headrace::engine
