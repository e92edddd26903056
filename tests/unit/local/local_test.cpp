// SPDX-License-Identifier: Apache-2.0
// Moves inside one agent: what the contract suite, which runs over them too, cannot script.
#include "gpu/device_memory.hpp"
#include "local/backend.hpp"
#include "local/request.hpp"
#include "support/direct_backend.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_kernels.hpp"
#include "support/plugin_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace headrace::local {
namespace {

using ::testing::HasSubstr;

class Local : public test::DirectBackend<LocalBackend> {
 protected:
  explicit Local(const std::vector<headrace_setting_v1>& settings = {}) {
    cuda::add_reference_kernels(fake);
    const gpu::GpuSource source{
        [this] { return fake.load(); },
        [] { return gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the fake library"); }};
    backend = LocalBackend::open(plugin::Host(host.table()), {settings, {}}, source).value();
  }
  ~Local() override { close(); }

  /// Memory with other bytes each time, of that GPU; -1: the host's.
  struct Memory {
    std::vector<std::byte> host;
    gpu::DeviceMemory device;
    int ordinal = -1;

    [[nodiscard]] std::span<std::byte> bytes() {
      if (ordinal < 0) return host;
      return {reinterpret_cast<std::byte*>(device.address()), device.bytes()};
    }
  };
  Memory memory(int ordinal, std::size_t bytes) {
    Memory made;
    made.ordinal = ordinal;
    if (ordinal < 0) {
      made.host.resize(bytes);
    } else {
      const auto device = gpu::Device::open(fake.load().value(), ordinal).value();
      made.device = gpu::DeviceMemory::allocate(device, bytes).value();
    }
    test::fill_pattern(made.bytes(), next_seed++);
    return made;
  }

  Region* registered(Memory& memory, std::uint32_t flags = 0) {
    headrace_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = next_region++;
    region.kind = memory.ordinal < 0 ? HEADRACE_DRAM : HEADRACE_VRAM;
    region.address = reinterpret_cast<std::uint64_t>(memory.bytes().data());
    region.length = memory.bytes().size();
    region.device = memory.ordinal;
    region.memory_fd = region.file_fd = -1;
    region.flags = flags;
    return backend->register_region(region).value();
  }

  test::PostEnd run(Request* handle) {
    EXPECT_TRUE(post(handle).ok());
    while (in_flight(handle)) (void)backend->poll(*handle), backend->progress();
    return end_of(handle);
  }

  cuda::FakeCuda fake{{{}, {}}};
  std::uint64_t next_seed = 1;
  std::uint32_t next_region = 1;
};

TEST_F(Local, memories_of_every_kind_are_copied) {
  for (const auto& [from, to] : {std::pair{0, 1}, {0, -1}, {-1, 1}, {1, 1}, {-1, -1}}) {
    for (const std::size_t pages : {std::size_t{10}, std::size_t{30'000}}) {
      Memory source = memory(from, pages * 100), target = memory(to, pages * 100);
      Region *const one = registered(source), *const other = registered(target);
      auto* const write = backend
                              ->prepare(nullptr, request(HEADRACE_WRITE, test::uniform_side(one, 0, 100, 100),
                                                         test::uniform_side(other, 0, 100, 100), pages))
                              .value();
      EXPECT_EQ(run(write).status, Status{});
      EXPECT_TRUE(std::ranges::equal(source.bytes(), target.bytes())) << from << " to " << to;
      backend->release(*write);
      backend->deregister_region(*one);
      backend->deregister_region(*other);
    }
  }
}

/// Host memory that no GPU reaches, so that the driver copies.
class LocalByDriver : public Local {
 protected:
  LocalByDriver() : Local({{"pin_registered", "off"}, {"staging_bytes", "0"}}) {}
};

TEST_F(LocalByDriver, a_copy_that_the_driver_refuses_ends_the_post_with_its_words) {
  Memory source = memory(0, 1000), target = memory(-1, 1000);
  Region *const one = registered(source), *const other = registered(target);
  auto* const write = backend
                          ->prepare(nullptr, request(HEADRACE_WRITE, test::uniform_side(one, 0, 100, 100),
                                                     test::uniform_side(other, 0, 100, 100), 10))
                          .value();
  fake.fail("cuMemcpyAsync", cuda::Outcome::unknown);
  const test::PostEnd end = run(write);
  EXPECT_EQ(end.status.code, Code::backend_failed);
  EXPECT_THAT(end.text, HasSubstr("GPU 0"));
  EXPECT_EQ(run(write).status, Status{});
  backend->release(*write);
  backend->deregister_region(*one);
  backend->deregister_region(*other);
}

TEST_F(Local, two_sides_of_one_memory_may_overlap) {
  Memory memory_of_both = memory(-1, 3000);
  std::vector<std::byte> expected = memory_of_both.host;
  std::memmove(expected.data() + 100, expected.data(), 2000);
  Region* const region = registered(memory_of_both);
  auto* const write =
      backend
          ->prepare(nullptr, request(HEADRACE_WRITE, test::uniform_side(region, 0, 2000, 2000),
                                     test::uniform_side(region, 100, 2000, 2000), 1))
          .value();
  EXPECT_EQ(run(write).status, Status{});
  EXPECT_EQ(memory_of_both.host, expected);
  backend->release(*write);
  backend->deregister_region(*region);
}

TEST_F(Local, a_write_to_a_read_only_region_is_refused_at_its_page) {
  Memory source = memory(-1, 400), open = memory(-1, 400), closed = memory(-1, 400);
  Region* const one = registered(source);
  const std::array<Region*, 2> targets{registered(open), registered(closed, HEADRACE_REGION_READ_ONLY)};
  test::PageSide remote = test::uniform_side(targets[0], 0, 100, 100);
  remote.regions.push_back(targets[1]);
  remote.region_of = {0, 0, 1, 0};
  const auto local = test::uniform_side(one, 0, 100, 100);
  const auto refused = backend->prepare(nullptr, request(HEADRACE_WRITE, local, remote, 4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().page, 2u);
  auto* const read = backend->prepare(nullptr, request(HEADRACE_READ, local, remote, 4)).value();
  EXPECT_EQ(run(read).status, Status{});
  backend->release(*read);
  for (Region* const region : {one, targets[0], targets[1]}) backend->deregister_region(*region);
}

TEST_F(Local, pages_without_bytes_end_at_once) {
  Memory source = memory(-1, 400), target = memory(-1, 400);
  Region *const one = registered(source), *const other = registered(target);
  const auto empty = [](Region* region) { return test::uniform_side(region, 0, 0, 0); };
  auto* const write =
      backend->prepare(nullptr, request(HEADRACE_WRITE, empty(one), empty(other), 5000)).value();
  EXPECT_EQ(run(write).status, Status{});
  backend->release(*write);
  backend->deregister_region(*one);
  backend->deregister_region(*other);
}

TEST_F(Local, opens_no_gpu_before_its_memory_is_registered) {
  Memory plain = memory(-1, 4096);
  Region* const region = registered(plain);
  EXPECT_EQ(fake.live().modules, 0);
  backend->deregister_region(*region);
}

TEST(LocalOptions, that_make_no_sense_are_refused_by_name) {
  const std::array settings{headrace_setting_v1{"chunk_bytes", "1"}};
  const auto refused = read_settings({settings, {}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("local.chunk_bytes"));
}

}  // namespace
}  // namespace headrace::local
