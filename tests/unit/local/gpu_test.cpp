// SPDX-License-Identifier: Apache-2.0
// Moves of GPU memory inside one agent, over the fake driver.
#include "gpu/device_memory.hpp"
#include "gpu/path_speed.hpp"
#include "local/backend.hpp"
#include "local/request.hpp"
#include "support/direct_backend.hpp"
#include "support/fake_courier.hpp"
#include "support/fake_graph.hpp"
#include "support/fake_kernels.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>

namespace headrace::local {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LocalGpu : public test::DirectBackend<LocalBackend> {
 protected:
  explicit LocalGpu(std::vector<cuda::FakeGpu> gpus = {{}, {}, {}},
                    const std::vector<headrace_setting_v1>& settings = {})
      : fake(std::move(gpus)) {
    cuda::add_reference_kernels(fake);
    const gpu::GpuSource source{
        [this] { return fake.load(); },
        [] { return gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the fake library"); }};
    backend = LocalBackend::open(plugin::Host(host.table()), {settings, folder.path()}, source).value();
  }
  ~LocalGpu() override { close(); }

  /// Memory of a GPU that the test's own code allocates, as torch would.
  gpu::DeviceMemory memory(int ordinal, std::size_t bytes) {
    auto made =
        gpu::DeviceMemory::allocate(gpu::Device::open(fake.load().value(), ordinal).value(), bytes).value();
    std::generate_n(reinterpret_cast<unsigned char*>(made.address()), bytes,
                    [this] { return static_cast<unsigned char>(random()); });
    return made;
  }
  headrace_region_v1 region_of(const gpu::DeviceMemory& memory, int ordinal, std::uint32_t flags = 0) {
    headrace_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = next_region++;
    region.kind = HEADRACE_VRAM;
    region.address = memory.address();
    region.length = memory.bytes();
    region.device = ordinal;
    region.memory_fd = region.file_fd = -1;
    region.flags = flags;
    return region;
  }
  Region* registered(const gpu::DeviceMemory& memory, int ordinal, std::uint32_t flags = 0) {
    return backend->register_region(region_of(memory, ordinal, flags)).value();
  }
  Status run(Request* handle) {
    const Status posted = post(handle);
    if (!posted.ok()) return posted;
    while (in_flight(handle)) backend->progress();
    return end_of(handle).status;
  }
  static bool same(const gpu::DeviceMemory& a, const gpu::DeviceMemory& b) {
    return std::memcmp(reinterpret_cast<void*>(a.address()), reinterpret_cast<void*>(b.address()),
                       a.bytes()) == 0;
  }

  std::mt19937 random{3};
  std::uint32_t next_region = 1;
  test::TemporaryFolder folder;
  cuda::FakeCuda fake;
};

TEST_F(LocalGpu, opens_no_gpu_before_memory_is_registered) {
  EXPECT_EQ(fake.calls("cuInit"), 0);
  EXPECT_EQ(backend->info().abilities,
            static_cast<std::uint32_t>(HEADRACE_LOCAL | HEADRACE_GRID | HEADRACE_STREAM | HEADRACE_CAPTURE));
  const auto near = memory(0, 4096);
  auto* const region = registered(near, 0);
  EXPECT_EQ(fake.live().modules, 1);
  backend->deregister_region(*region);
}

TEST_F(LocalGpu, moves_scattered_pages_between_two_gpus_both_ways) {
  const auto near = memory(0, 64 * 512), far = memory(1, 64 * 512);
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 1);
  auto* const remote_handle = backend->load_local(*there).value();
  auto local = test::uniform_side(here, 0, 512, 512), remote = test::uniform_side(remote_handle, 0, 512, 512);
  for (std::uint32_t i = 0; i < 64; ++i) {
    local.indices.push_back(i * 5 % 64);
    remote.indices.push_back(i * 5 % 64);
  }
  for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
    const auto args = request(op, local, remote, 64);
    EXPECT_EQ(backend->cost(args).bytes_per_second, gpu::between_gpus.bytes_per_second);
    auto* const handle = backend->prepare(nullptr, args).value();
    ++*reinterpret_cast<unsigned char*>(near.address());
    EXPECT_EQ(run(handle), Status{});
    EXPECT_TRUE(same(near, far));
    backend->release(*handle);
  }
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, ends_are_told_once_whoever_looks_and_the_bell_wakes_a_sleeper) {
  const auto near = memory(0, 4096), far = memory(0, 4096);
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 0);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto args = request(HEADRACE_WRITE, test::uniform_side(here, 0, 4096, 4096),
                            test::uniform_side(remote_handle, 0, 4096, 4096), 1);
  auto* const handle = backend->prepare(nullptr, args).value();
  fake.hold();
  ASSERT_TRUE(post(handle).ok());
  EXPECT_EQ(backend->progress(), 0u);
  EXPECT_EQ(backend->arm(true), 0u);
  fake.release();
  pollfd bell{host.bell().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&bell, 1, 10'000), 1);
  EXPECT_EQ(backend->arm(false), 0u);
  EXPECT_EQ(backend->progress(), 1u);
  EXPECT_FALSE(backend->poll(*handle));
  EXPECT_EQ(ends(handle), 1u);
  ASSERT_TRUE(post(handle).ok());
  EXPECT_FALSE(backend->poll(*handle));
  EXPECT_EQ(ends(handle), 2u);
  EXPECT_TRUE(same(near, far));
  backend->release(*handle);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, memory_that_was_freed_is_not_found_even_if_its_address_is_back) {
  auto near = memory(0, 4096);
  const auto far = memory(0, 4096);
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 0);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto args = request(HEADRACE_WRITE, test::uniform_side(here, 0, 4096, 4096),
                            test::uniform_side(remote_handle, 0, 4096, 4096), 1);
  const auto address = near.address();
  near = gpu::DeviceMemory();
  EXPECT_EQ(backend->prepare(nullptr, args).code(), Code::not_found);
  near = memory(0, 4096);
  ASSERT_EQ(near.address(), address);
  const auto prepared = backend->prepare(nullptr, args);
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.code(), Code::not_found);
  EXPECT_THAT(prepared.error().message, AllOf(HasSubstr("were freed"), HasSubstr("register it again")));
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, what_may_not_be_written_is_refused_and_what_no_gpu_reaches_is_copied_by_the_driver) {
  const auto near = memory(0, 4096), far = memory(1, 4096);
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 1, HEADRACE_REGION_READ_ONLY);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto local = test::uniform_side(here, 0, 4096, 4096),
             remote = test::uniform_side(remote_handle, 0, 4096, 4096);
  EXPECT_EQ(backend->prepare(nullptr, request(HEADRACE_WRITE, local, remote, 1)).code(),
            Code::invalid_argument);
  fake.forbid_peer_access(0, 1);
  auto both = local;
  both.regions.push_back(there);
  const int before = fake.calls("cuMemcpyAsync");
  for (const auto& side : {local, both}) {
    auto* const handle = backend->prepare(nullptr, request(HEADRACE_READ, side, remote, 1)).value();
    EXPECT_EQ(run(handle), Status{});
    EXPECT_TRUE(same(near, far));
    backend->release(*handle);
  }
  EXPECT_EQ(fake.calls("cuMemcpyAsync"), before + 2);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, moves_between_a_gpu_and_host_memory_whichever_side_is_local) {
  std::vector<unsigned char> host_bytes(64 * 512, 1);
  const auto far = memory(1, host_bytes.size());
  headrace_region_v1 args = region_of(far, -1);
  args.kind = HEADRACE_DRAM;
  args.address = reinterpret_cast<std::uint64_t>(host_bytes.data());
  auto* const on_host = backend->register_region(args).value();
  EXPECT_EQ(fake.live().modules, 0) << "host memory alone needs no GPU";
  auto* const on_gpu = registered(far, 1);
  auto* const host_remote = backend->load_local(*on_host).value();
  auto* const gpu_remote = backend->load_local(*on_gpu).value();
  const auto same_now = [&] {
    return std::memcmp(host_bytes.data(), reinterpret_cast<void*>(far.address()), host_bytes.size()) == 0;
  };
  for (const bool host_is_local : {true, false}) {
    for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
      auto local = test::uniform_side(host_is_local ? on_host : on_gpu, 0, 512, 512),
           remote = test::uniform_side(host_is_local ? gpu_remote : host_remote, 0, 512, 512);
      for (std::uint32_t i = 0; i < 64; ++i) {
        local.indices.push_back(i * 5 % 64);
        remote.indices.push_back(i * 5 % 64);
      }
      const auto prepared = request(op, local, remote, 64);
      EXPECT_EQ(backend->cost(prepared).bytes_per_second, gpu::with_host_memory.bytes_per_second);
      auto* const handle = backend->prepare(nullptr, prepared).value();
      ++host_bytes[777];
      EXPECT_FALSE(same_now());
      EXPECT_EQ(run(handle), Status{});
      EXPECT_TRUE(same_now());
      backend->release(*handle);
    }
  }
  backend->unload(*gpu_remote);
  backend->unload(*host_remote);
  const int pinned = fake.live().pinned;
  backend->deregister_region(*on_gpu);
  backend->deregister_region(*on_host);
  EXPECT_EQ(fake.live().pinned, pinned - 1);
}

/// Host memory that the driver refuses to pin, and pages of an odd length in another order.
class LocalGpuStaged : public LocalGpu {
 protected:
  explicit LocalGpuStaged(const char* staging_bytes = "64KiB", const char* pin = "auto")  // slots of 4 KiB
      : LocalGpu({{}, {}}, {{"staging_bytes", staging_bytes}, {"pin_registered", pin}}) {
    bytes.resize(pages * page_bytes);
    std::ranges::generate(bytes, [this] { return static_cast<unsigned char>(random()); });
    far = memory(1, bytes.size());
    headrace_region_v1 args = region_of(far, -1);
    args.kind = HEADRACE_DRAM;
    args.address = reinterpret_cast<std::uint64_t>(bytes.data());
    on_host = backend->register_region(args).value();
    on_gpu = registered(far, 1);
    remote_handle = backend->load_local(*on_gpu).value();
    if (pin == std::string_view("auto"))
      fake.fail("cuMemHostRegister", cuda::Outcome::out_of_memory, 1, 1000);
  }
  ~LocalGpuStaged() override {
    backend->unload(*remote_handle);
    backend->deregister_region(*on_gpu);
    backend->deregister_region(*on_host);
  }
  headrace_prepare_v1 all_pages(headrace_op_v1 op) {
    auto local = test::uniform_side(on_host, 0, page_bytes, page_bytes),
         remote = test::uniform_side(remote_handle, 0, page_bytes, page_bytes);
    for (std::uint32_t i = 0; i < pages; ++i) {
      local.indices.push_back(i * 7 % pages);
      remote.indices.push_back(i * 7 % pages);
    }
    return request(op, local, remote, pages);
  }
  [[nodiscard]] bool same_now() const {
    return std::memcmp(bytes.data(), reinterpret_cast<void*>(far.address()), bytes.size()) == 0;
  }

  static constexpr std::uint32_t pages = 101, page_bytes = 5003;  // longer than a slot
  std::vector<unsigned char> bytes;
  gpu::DeviceMemory far;
  Region *on_host = nullptr, *on_gpu = nullptr;
  Remote* remote_handle = nullptr;
};

TEST_F(LocalGpuStaged, host_memory_that_cannot_be_pinned_moves_through_slots_that_are) {
  for (const auto op : {HEADRACE_WRITE, HEADRACE_READ}) {
    const auto args = all_pages(op);
    auto* const handle = backend->prepare(nullptr, args).value();
    for (int post = 0; post < 5; ++post) {
      ++bytes[777 + static_cast<std::size_t>(post)];
      EXPECT_FALSE(same_now());
      ASSERT_EQ(run(handle), Status{});
      ASSERT_TRUE(same_now());
    }
    backend->release(*handle);
  }
}

TEST_F(LocalGpuStaged, no_stream_orders_what_threads_copy) {
  const auto args = all_pages(HEADRACE_WRITE);
  auto* const handle = backend->prepare(nullptr, args).value();
  const auto driver_of_it = gpu::Device::open(fake.load().value(), 1).value();
  const auto stream = gpu::Stream::make(driver_of_it).value();
  headrace_post_v1 how{};
  how.stream = stream.handle();
  EXPECT_EQ(post(handle, how).code, Code::not_supported);
  EXPECT_FALSE(same_now());
  EXPECT_EQ(run(handle), Status{});
  EXPECT_TRUE(same_now());
  backend->release(*handle);
}

TEST_F(LocalGpuStaged, a_fault_of_the_gpu_ends_the_post_when_nobody_touches_its_memory) {
  const auto args = all_pages(HEADRACE_READ);
  auto* const handle = backend->prepare(nullptr, args).value();
  fake.add_kernel("headrace_move_few", sizeof(headrace_move_few_v1),
                  [](const void*) { return cuda::Outcome::illegal_address; });
  EXPECT_EQ(run(handle).code, Code::backend_failed);
  EXPECT_THAT(end_of(handle).text, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  backend->release(*handle);
}

TEST_F(LocalGpuStaged, memory_that_is_gone_or_may_not_be_written_ends_the_post_and_not_the_process) {
  const std::size_t length = 16 * 4096;
  for (const int protection : {PROT_READ, PROT_NONE}) {
    void* const there = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(there, MAP_FAILED);
    headrace_region_v1 region = region_of(far, -1);
    region.region_id = 99;
    region.kind = HEADRACE_DRAM;
    region.address = reinterpret_cast<std::uint64_t>(there);
    region.length = length;
    auto* const local = backend->register_region(region).value();
    const auto args = request(HEADRACE_READ, test::uniform_side(local, 0, 4096, 4096),
                              test::uniform_side(remote_handle, 0, 4096, 4096), 16);
    auto* const handle = backend->prepare(nullptr, args).value();
    EXPECT_EQ(run(handle), Status{});
    ASSERT_EQ(::mprotect(there, length, protection), 0);
    EXPECT_EQ(run(handle).code, Code::backend_failed);
    EXPECT_THAT(end_of(handle).text, HasSubstr("read-only, or was unmapped"));
    backend->release(*handle);
    backend->deregister_region(*local);
    ::munmap(there, length);
  }
}

class LocalGpuUnpinned : public LocalGpuStaged {
 protected:
  LocalGpuUnpinned() : LocalGpuStaged("64KiB", "off") {}
};

TEST_F(LocalGpuUnpinned, host_memory_moves_and_is_not_pinned) {
  const auto args = all_pages(HEADRACE_WRITE);
  auto* const handle = backend->prepare(nullptr, args).value();
  EXPECT_FALSE(same_now());
  EXPECT_EQ(run(handle), Status{});
  EXPECT_TRUE(same_now());
  EXPECT_EQ(fake.calls("cuMemHostRegister"), 0);
  backend->release(*handle);
}

class LocalGpuUnstaged : public LocalGpuStaged {
 protected:
  LocalGpuUnstaged() : LocalGpuStaged("0") {}
};

TEST_F(LocalGpuUnstaged, host_memory_that_cannot_be_pinned_is_copied_by_the_driver) {
  const auto args = all_pages(HEADRACE_READ);
  auto* const handle = backend->prepare(nullptr, args).value();
  EXPECT_EQ(run(handle), Status{});
  EXPECT_TRUE(same_now());
  backend->release(*handle);
}

TEST_F(LocalGpu, a_post_in_the_order_of_a_stream_sees_what_was_queued_before) {
  const auto near = memory(0, 4096), far = memory(1, 4096);
  const auto device = gpu::Device::open(fake.load().value(), 0).value();
  const auto stream = gpu::Stream::make(device).value(),
             other = gpu::Stream::make(gpu::Device::open(fake.load().value(), 1).value()).value();
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 1);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto args = request(HEADRACE_WRITE, test::uniform_side(here, 0, 4096, 4096),
                            test::uniform_side(remote_handle, 0, 4096, 4096), 1);
  auto* const handle = backend->prepare(nullptr, args).value();
  const auto post_on = [&](cuda::Stream on) {
    headrace_post_v1 how{};
    how.stream = on;
    return post(handle, how);
  };
  fake.hold();
  {
    const gpu::ContextGuard current(*device);
    ASSERT_EQ(device->driver().memset_d8_async(near.address(), 77, 4096, stream.handle()),
              cuda::Outcome::success);
  }
  ASSERT_TRUE(post_on(stream.handle()).ok());
  {
    const gpu::ContextGuard current(*device);
    ASSERT_EQ(device->driver().memset_d8_async(near.address(), 78, 4096, stream.handle()),
              cuda::Outcome::success);
  }
  EXPECT_EQ(backend->progress(), 0u);
  fake.release();
  while (in_flight(handle)) backend->progress();
  EXPECT_EQ(end_of(handle).status, Status{});
  const std::vector<unsigned char> expected(4096, 77);
  EXPECT_EQ(std::memcmp(expected.data(), reinterpret_cast<void*>(far.address()), 4096), 0);
  EXPECT_EQ(post_on(other.handle()).code, Code::invalid_argument);
  {
    const gpu::ContextGuard current(*device);
    cuda::Graph graph = nullptr;
    ASSERT_EQ(device->driver().stream_begin_capture(stream.handle(), cuda::CaptureMode::relaxed),
              cuda::Outcome::success);
    EXPECT_EQ(post_on(stream.handle()).code, Code::not_supported);
    ASSERT_EQ(device->driver().stream_end_capture(stream.handle(), &graph), cuda::Outcome::success);
    ASSERT_EQ(device->driver().graph_destroy(graph), cuda::Outcome::success);
  }
  backend->release(*handle);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, remote_pages_on_several_gpus_move_in_one_post) {
  constexpr std::uint32_t pages = 90, bytes = 700;
  const auto near = memory(0, pages * bytes);
  const std::vector<gpu::DeviceMemory> far = [&] {
    std::vector<gpu::DeviceMemory> made;
    for (const int gpu : {0, 1, 2}) made.push_back(memory(gpu, pages * bytes));
    return made;
  }();
  auto* const here = registered(near, 0);
  std::vector<Region*> there;
  test::PageSide remote;
  for (int gpu = 0; gpu < 3; ++gpu) {
    there.push_back(registered(far[static_cast<std::size_t>(gpu)], gpu));
    remote.regions.push_back(backend->load_local(*there.back()).value());
  }
  for (std::uint32_t i = 0; i < pages; ++i) {
    remote.region_of.push_back(i % 3);
    remote.offsets.push_back(std::uint64_t{(i * 7) % pages} * bytes);
  }
  remote.page_bytes = bytes;
  const auto args = request(HEADRACE_READ, test::uniform_side(here, 0, bytes, bytes), remote, pages);
  auto* const handle = backend->prepare(nullptr, args).value();
  const int launches = fake.calls("cuLaunchKernelEx");
  EXPECT_EQ(run(handle), Status{});
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), launches + 1);
  for (std::uint32_t i = 0; i < pages; ++i)
    EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(near.address() + std::uint64_t{i} * bytes),
                          reinterpret_cast<void*>(far[i % 3].address() + remote.offsets[i]), bytes),
              0)
        << "page " << i;
  backend->release(*handle);
  for (void* const remote_handle : remote.regions) backend->unload(Handles::remote(remote_handle));
  for (auto* const region : there) backend->deregister_region(*region);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, a_captured_request_moves_at_every_replay_what_its_numbers_say_then) {
  constexpr std::uint32_t pages = 64, bytes = 513;
  const auto near = memory(0, pages * bytes), far = memory(1, pages * bytes);
  const auto stream = gpu::Stream::make(gpu::Device::open(fake.load().value(), 0).value()).value();
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 1);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto args = request(HEADRACE_READ, test::uniform_side(here, 0, bytes, bytes),
                            test::uniform_side(remote_handle, 0, bytes, bytes), pages);
  auto* const handle = backend->prepare(nullptr, args).value();
  headrace_capture_v1 capture{};
  capture.struct_size = sizeof capture;
  capture.stream = stream.handle();
  capture.local_pages = capture.remote_pages = pages;
  EXPECT_FALSE(backend->capture(*handle, capture).value()) << "nobody captures the stream";
  {
    const test::GpuGraph graph(stream, [&] {
      capture.has_message = 1;
      const auto refused = backend->capture(*handle, capture);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.code(), Code::not_supported);
      EXPECT_THAT(refused.error().message, HasSubstr("notification"));
      capture.has_message = 0;
      EXPECT_TRUE(backend->capture(*handle, capture).value());
    });
    EXPECT_FALSE(same(near, far)) << "nothing has run";
    graph.replay();
    EXPECT_TRUE(same(near, far));
    EXPECT_EQ(backend->check(*handle).value(), 1U);
    std::vector<std::uint32_t> numbers(pages);
    for (std::uint32_t i = 0; i < pages; ++i) numbers[i] = pages - 1 - i;
    headrace_indices_v1 change{};
    change.struct_size = sizeof change;
    change.remote = numbers.data();
    change.count = pages;
    change.stream = stream.handle();
    ASSERT_TRUE(backend->set_indices(*handle, change));
    graph.replay();
    for (std::uint32_t i = 0; i < pages; ++i)
      EXPECT_EQ(
          std::memcmp(reinterpret_cast<void*>(near.address() + std::uint64_t{i} * bytes),
                      reinterpret_cast<void*>(far.address() + std::uint64_t{numbers[i]} * bytes), bytes),
          0);
    EXPECT_EQ(backend->check(*handle).value(), 2U);
    numbers[5] = pages;
    auto on_gpu = memory(0, pages * sizeof numbers[0]);
    std::memcpy(reinterpret_cast<void*>(on_gpu.address()), numbers.data(), on_gpu.bytes());
    change.remote = reinterpret_cast<const std::uint32_t*>(on_gpu.address());
    change.kind = HEADRACE_VRAM;
    ASSERT_TRUE(backend->set_indices(*handle, change));
    graph.replay();
    const auto told = backend->check(*handle);
    ASSERT_FALSE(told);
    EXPECT_EQ(told.code(), Code::invalid_argument);
    EXPECT_EQ(told.error().page, 5U);
    EXPECT_THAT(told.error().message, HasSubstr("remote list"));
    EXPECT_EQ(backend->check(*handle).value(), 3U);
  }
  backend->end_capture(*handle);
  EXPECT_EQ(run(handle), Status{}) << "it may be posted again";
  EXPECT_TRUE(same(near, far)) << "with the pages that it was made with";
  backend->release(*handle);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, a_capture_that_cannot_be_leaves_nothing_behind) {
  const auto near = memory(0, 4096), far = memory(1, 4096);
  const auto stream = gpu::Stream::make(gpu::Device::open(fake.load().value(), 0).value()).value(),
             other = gpu::Stream::make(gpu::Device::open(fake.load().value(), 1).value()).value();
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 1);
  auto* const remote_handle = backend->load_local(*there).value();
  const auto args = request(HEADRACE_WRITE, test::uniform_side(here, 0, 512, 512),
                            test::uniform_side(remote_handle, 0, 512, 512), 8);
  auto* const handle = backend->prepare(nullptr, args).value();
  headrace_capture_v1 capture{};
  capture.struct_size = sizeof capture;
  capture.local_pages = capture.remote_pages = 8;
  {
    capture.stream = other.handle();
    const test::GpuGraph graph(
        other, [&] { EXPECT_EQ(backend->capture(*handle, capture).code(), Code::invalid_argument); });
  }
  capture.stream = stream.handle();
  const test::GpuGraph graph(stream, [&] {
    fake.fail("cuLaunchKernelEx", cuda::Outcome::launch_out_of_resources);
    EXPECT_EQ(backend->capture(*handle, capture).code(), Code::backend_failed);
    EXPECT_TRUE(backend->capture(*handle, capture).value());
  });
  graph.replay();
  EXPECT_TRUE(same(near, far));
  backend->release(*handle);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

TEST_F(LocalGpu, a_kernels_fault_ends_posts_with_the_drivers_words) {
  const auto near = memory(0, 64 * 512), far = memory(0, 64 * 512);
  auto* const here = registered(near, 0);
  auto* const there = registered(far, 0);
  auto* const remote_handle = backend->load_local(*there).value();
  auto local = test::uniform_side(here, 0, 512, 512);
  for (std::uint32_t i = 0; i < 32; ++i) local.indices.push_back(63 - i);
  const auto args = request(HEADRACE_WRITE, local, test::uniform_side(remote_handle, 0, 512, 512), 32);
  auto* const handle = backend->prepare(nullptr, args).value();
  fake.add_kernel("headrace_move_row_pages", sizeof(headrace_move_pages_v1),
                  [](const void*) { return cuda::Outcome::illegal_address; });
  EXPECT_EQ(run(handle).code, Code::backend_failed);
  EXPECT_THAT(end_of(handle).text, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(post(handle).code, Code::backend_failed) << "the context is gone";
  backend->release(*handle);
  backend->unload(*remote_handle);
  backend->deregister_region(*there);
  backend->deregister_region(*here);
}

/// One page between two GPUs, as the courier takes it.
class LocalGpuCourier : public LocalGpu {
 protected:
  explicit LocalGpuCourier(const std::vector<headrace_setting_v1>& settings = {{"courier", "on"},
                                                                               {"courier_idle", "1s"}})
      : LocalGpu({{}, {}}, settings),
        here(registered(near, 0)),
        there(registered(far, 1)),
        remote(backend->load_local(*there).value()) {}
  ~LocalGpuCourier() override {
    for (auto* const handle : handles) backend->release(*handle);
    backend->unload(*remote);
    backend->deregister_region(*there);
    backend->deregister_region(*here);
  }
  /// Page `page` is written.
  Request* prepared(std::uint64_t page, std::uint64_t bytes = 4096) {
    const auto side = [&](void* region) { return test::uniform_side(region, page * bytes, bytes, bytes); };
    const auto args = request(HEADRACE_WRITE, side(here), side(remote), 1);
    cost_method = backend->cost(args).method;
    handles.push_back(backend->prepare(nullptr, args).value());
    return handles.back();
  }
  [[nodiscard]] int couriers() const { return fake.calls("headrace_courier"); }
  [[nodiscard]] int copies() const { return fake.calls("cuMemcpyAsync"); }

  static constexpr std::uint64_t pages = HEADRACE_COURIER_SLOTS + 6;
  const gpu::DeviceMemory near = memory(0, pages * 4096), far = memory(1, pages * 4096);
  Region* const here;
  Region* const there;
  Remote* const remote;
  std::string cost_method;
  std::vector<Request*> handles;
};

TEST_F(LocalGpuCourier, carries_small_posts_one_launch_for_all_and_says_so) {
  for (std::uint64_t page = 0; page < pages; ++page) {
    auto* const handle = prepared(page);
    EXPECT_THAT(cost_method, HasSubstr("courier"));
    ASSERT_EQ(run(handle), Status{});
    ASSERT_EQ(run(handle), Status{}) << "again";
  }
  EXPECT_TRUE(same(near, far));
  EXPECT_EQ(couriers(), 1);
  EXPECT_EQ(copies(), 0);
}

TEST_F(LocalGpuCourier, leaves_long_posts_and_those_of_streams_to_launches) {
  auto* const large = prepared(0, pages * 4096);
  EXPECT_THAT(cost_method, testing::Not(HasSubstr("courier")));
  EXPECT_EQ(run(large), Status{});
  EXPECT_TRUE(same(near, far));
  EXPECT_EQ(copies(), 1);
  const auto stream = gpu::Stream::make(gpu::Device::open(fake.load().value(), 0).value()).value();
  auto* const handle = prepared(1);
  headrace_post_v1 how{};
  how.stream = stream.handle();
  ASSERT_EQ(post(handle, how), Status{});
  while (in_flight(handle)) backend->progress();
  EXPECT_EQ(copies(), 2);
  EXPECT_EQ(couriers(), 0);
}

TEST_F(LocalGpuCourier, whose_ring_is_full_leaves_the_rest_to_launches) {
  std::vector<Request*> all;
  for (std::uint64_t page = 0; page < pages; ++page) all.push_back(prepared(page));
  fake.hold();
  for (auto* const handle : all) ASSERT_EQ(post(handle), Status{});
  EXPECT_EQ(backend->progress(), 0u);
  fake.release();
  for (auto* const handle : all) {
    while (in_flight(handle)) backend->progress();
    EXPECT_EQ(end_of(handle).status, Status{});
  }
  EXPECT_TRUE(same(near, far));
  EXPECT_EQ(copies(), 6);
}

TEST_F(LocalGpuCourier, that_cannot_be_launched_costs_one_warning_and_no_post) {
  auto* const one = prepared(0);
  auto* const two = prepared(1);
  fake.fail("cuLaunchKernelEx", cuda::Outcome::out_of_memory, 1, 2);
  EXPECT_EQ(run(one), Status{});
  EXPECT_EQ(run(two), Status{});
  EXPECT_EQ(copies(), 2);
  EXPECT_THAT(host.log(), testing::ElementsAre(HasSubstr("launch the courier on GPU 0")));
  EXPECT_EQ(
      std::memcmp(reinterpret_cast<void*>(near.address()), reinterpret_cast<void*>(far.address()), 8192), 0);
}

TEST_F(LocalGpuCourier, that_left_before_a_post_and_cannot_come_back_fails_it) {
  auto* const handle = prepared(0);
  cuda::add_courier_that_leaves(fake);
  fake.hold();
  ASSERT_EQ(post(handle), Status{});
  fake.fail("cuLaunchKernelEx", cuda::Outcome::out_of_memory);
  fake.release();
  while (in_flight(handle)) backend->progress();
  EXPECT_EQ(end_of(handle).status.code, Code::backend_failed);
  EXPECT_THAT(host.log(), testing::ElementsAre(HasSubstr("launch the courier on GPU 0")));
  EXPECT_EQ(run(handle), Status{}) << "the next goes by launch";
}

TEST_F(LocalGpuCourier, wakes_a_sleeper_and_comes_back_for_him) {
  auto* const handle = prepared(0);
  cuda::add_courier_that_leaves(fake);
  fake.hold();
  ASSERT_EQ(post(handle), Status{});
  EXPECT_EQ(backend->arm(true), 0u);
  cuda::add_reference_courier(fake);  // the next launch is as it should be
  fake.release();
  pollfd bell{host.bell().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&bell, 1, 10'000), 1);
  EXPECT_EQ(backend->arm(false), 0u);
  while (in_flight(handle)) backend->progress();
  EXPECT_EQ(end_of(handle).status, Status{});
  EXPECT_EQ(couriers(), 2);
}

TEST_F(LocalGpuCourier, whose_kernel_faults_ends_its_posts_with_the_drivers_words) {
  auto* const handle = prepared(0);
  fake.add_kernel("headrace_courier", sizeof(headrace_courier_launch_v1),
                  [](const void*) { return cuda::Outcome::illegal_address; });
  EXPECT_EQ(run(handle).code, Code::backend_failed);
  EXPECT_THAT(end_of(handle).text, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST(LocalGpuCourierOptions, that_make_no_sense_are_refused) {
  const auto opened = [](const char* name, const char* value) {
    const test::TemporaryFolder folder;
    test::PluginHost host{{}};
    const std::array given{headrace_setting_v1{name, value}};
    auto backend =
        LocalBackend::open(plugin::Host(host.table()), {given, folder.path()}, gpu::GpuSource::installed());
    std::string text = backend ? "" : backend.error().message;
    if (backend) backend->reset();
    host.instance_is_gone();
    return text;
  };
  EXPECT_THAT(opened("courier", "yes"), HasSubstr("must be off or on"));
  EXPECT_THAT(opened("courier_bytes", "2MiB"), HasSubstr("courier_bytes"));
  EXPECT_THAT(opened("courier_idle", "2s"), HasSubstr("must be a duration from 0s to 1s"));
  EXPECT_EQ(opened("courier_idle", "1s"), "");
}

TEST_F(LocalGpu, memory_of_another_gpu_than_was_said_is_refused) {
  const auto near = memory(1, 4096);
  const auto region = backend->register_region(region_of(near, 0));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.code(), Code::invalid_argument);
  EXPECT_THAT(region.error().message, AllOf(HasSubstr("GPU 0"), HasSubstr("GPU 1")));
  EXPECT_EQ(backend->register_region(region_of(near, 5)).code(), Code::invalid_argument);
}

class LocalGpuElsewhere : public LocalGpu {
 protected:
  LocalGpuElsewhere() : LocalGpu({{.name = "Old GPU", .major = 7, .minor = 0}}) {}
};

TEST_F(LocalGpuElsewhere, a_gpu_without_kernels_is_named) {
  const auto near = memory(0, 4096);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto region = backend->register_region(region_of(near, 0));
    ASSERT_FALSE(region);
    EXPECT_EQ(region.code(), Code::not_supported);
    EXPECT_THAT(region.error().message, AllOf(HasSubstr("Old GPU"), HasSubstr("7.0"), HasSubstr("sm_90a")));
  }
}

TEST(LocalGpuWithout, a_driver_says_so_at_registration) {
  const test::TemporaryFolder folder;
  test::PluginHost host{{}};
  const gpu::GpuSource source{
      []() -> Result<cuda::DriverTable> { return make_error(Code::not_supported, "no NVIDIA driver"); },
      [] { return gpu::KernelLibrary::load(); }};
  const auto backend = LocalBackend::open(plugin::Host(host.table()), {{}, folder.path()}, source).value();
  headrace_region_v1 region{};
  region.struct_size = sizeof region;
  region.kind = HEADRACE_VRAM;
  region.address = 4096;
  region.length = 4096;
  const auto registered = backend->register_region(region);
  ASSERT_FALSE(registered);
  EXPECT_EQ(registered.code(), Code::not_supported);
  EXPECT_THAT(registered.error().message, HasSubstr("no NVIDIA driver"));
}

}  // namespace
}  // namespace headrace::local
