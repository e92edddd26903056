// SPDX-License-Identifier: Apache-2.0
// GPU memory over sockets, with GPUs that are fake: what the contract suite, which runs over them too, cannot
// script.
#include "backends/tcp/backend.hpp"
#include "support/fake_gpus.hpp"
#include "support/fake_kernels.hpp"
#include "support/plugin_instance.hpp"
#include "support/sleeping_thread.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <tuple>

namespace headrace::test {  // the tests are written in the harness's words
namespace {

using ::testing::HasSubstr;

/// Two agents of this process with a link over one socket, unless told otherwise.
class TcpGpu : public testing::Test {
 protected:
  TcpGpu() { FakeGpus::offer_backends(); }
  ~TcpGpu() override {
    gpus().driver().release();
    gpus().choose(0);
  }

  static FakeGpus& gpus() { return FakeGpus::of_this_process(); }
  static cuda::FakeCuda& driver() { return gpus().driver(); }

  /// Memory of that GPU; -1: of the host.
  static Memory memory(int gpu, std::size_t bytes, std::uint64_t seed) {
    const FromTheHost plain;
    if (gpu < 0) return Memory(Memory::Kind::plain, bytes, seed, seed % 7);
    gpus().choose(gpu);
    MemorySource::use(&gpus());
    Memory made(Memory::Kind::plain, bytes, seed, seed % 7);
    MemorySource::use(nullptr);
    return made;
  }

  /// Waits for what no backend tells.
  template <class Done>
  bool soon(Done done) {
    const auto until = std::chrono::steady_clock::now() + World::default_limit;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      (void)world.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  /// Gives what should not happen the time to happen.
  void settle() {
    for (int i = 0; i < 2; ++i) {  // one thread may wake another
      settle_threads();
      while (world.progress() > 0) {
      }
    }
  }

  void open(const Settings& settings = {{"sockets", "1"}}) {
    const headrace_backend_v1* const table = load_plugin("tcp_gpu");
    a = std::make_unique<Instance>(world, table, settings,
                                   PluginHost::Args{.agent_name = "a", .incarnation = 1});
    b = std::make_unique<Instance>(world, table, settings,
                                   PluginHost::Args{.agent_name = "b", .incarnation = 2});
    ab = a->connect(*b);
    ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();
    ASSERT_TRUE(world.until([&] { return b->host().accepted_links().size() == 1; }));
    const HostLink link = b->host().accepted_links().front();
    ba = Link(*b, link.connection, link.token);
  }

  World world;
  std::unique_ptr<Instance> a, b;
  Link ab, ba;
};

TEST_F(TcpGpu, no_gpu_is_opened_before_its_memory_is_registered) {
  const int before = driver().calls("cuInit");
  open();
  const Memory mine = memory(-1, 1000, 1), theirs = memory(-1, 1000, 2);
  const Region here(*a, mine), there(*b, theirs);
  const Remote remote(ab, there.facts());
  Request read(*a, HEADRACE_READ, &ab, uniform_side(here.handle(), 0, 10, 10),
               uniform_side(remote.handle(), 0, 10, 10), 100);
  ASSERT_TRUE(read.run().status.ok());
  EXPECT_EQ(driver().calls("cuInit"), before);
  EXPECT_EQ(a->info().local_kinds, HEADRACE_KIND_BIT(HEADRACE_DRAM) | HEADRACE_KIND_BIT(HEADRACE_VRAM));
}

TEST(TcpWithout, a_driver_says_so_at_registration_and_still_reaches_gpus_of_peers) {
  PluginHost host{{}};
  std::vector<headrace_setting_v1> settings;
  for (const headrace_option_v1& row : tcp::Settings::rows())
    settings.push_back({row.name, row.default_value});
  const gpu::GpuSource source{
      []() -> Result<cuda::DriverTable> { return make_error(Code::not_supported, "no NVIDIA driver"); },
      [] { return gpu::KernelLibrary::load(); }};
  const auto backend =
      tcp::TcpBackend::open(plugin::Host(host.table()), {settings, {}}, {.gpus = source}).value();
  headrace_region_v1 region{};
  region.struct_size = sizeof region;
  region.kind = HEADRACE_VRAM;
  region.address = region.length = 4096;
  const auto registered = backend->register_region(region);
  ASSERT_FALSE(registered);
  EXPECT_EQ(registered.code(), Code::not_supported);
  EXPECT_THAT(registered.error().message, HasSubstr("no NVIDIA driver"));
  EXPECT_NE(backend->info().remote_kinds & HEADRACE_KIND_BIT(HEADRACE_VRAM), 0U);
}

/// Where the memories of a request lie: GPU 0, GPU 1, the host.
TEST_F(TcpGpu, one_request_mixes_memory_of_two_gpus_and_the_host_on_both_sides) {
  for (const char* chunk : {"1MiB", "8KiB"}) {
    SCOPED_TRACE(chunk);
    open({{"sockets", "2"}, {"gpu_chunk_bytes", chunk}});
    std::mt19937_64 random{5};
    constexpr std::array places = {0, -1, 1};
    std::vector<Memory> mine, theirs;
    std::vector<Region> here, there;
    std::vector<Remote> remotes;
    std::vector<Bytes> local, remote;
    std::vector<void*> local_handles, remote_handles;
    for (std::uint64_t i = 0; i < places.size(); ++i) {
      mine.push_back(memory(places[i], 900'000, 1 + i));
      theirs.push_back(memory(places[places.size() - 1 - i], 900'000, 11 + i));
      here.emplace_back(*a, mine.back());
      there.emplace_back(*b, theirs.back());
      remotes.emplace_back(ab, there.back().facts());
      local.emplace_back(mine.back().bytes().begin(), mine.back().bytes().end());
      remote.emplace_back(theirs.back().bytes().begin(), theirs.back().bytes().end());
      local_handles.push_back(here.back().handle());
      remote_handles.push_back(remotes.back().handle());
    }
    const std::vector<std::uint64_t> sizes(places.size(), 900'000);
    for (const RandomPages& shape :
         {RandomPages{500, 1, 300, 30}, RandomPages{200, 4096, 4096}, RandomPages{4, 200'000, 400'000}}) {
      for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
        const auto pages = random_pages(random, shape, op, sizes, sizes);
        move_pages(pages, op, local, remote);
        Request request(*a, op, &ab, side_of(pages, true, SideShape::general, local_handles, random),
                        side_of(pages, false, SideShape::general_indexed, remote_handles, random),
                        pages.size());
        const PostEnd end = request.run();
        ASSERT_TRUE(end.status.ok()) << end.text;
        for (std::size_t i = 0; i < places.size(); ++i) {
          EXPECT_TRUE(same_bytes(mine[i].bytes(), local[i])) << "op " << op << ", ours " << i;
          EXPECT_TRUE(same_bytes(theirs[i].bytes(), remote[i])) << "op " << op << ", theirs " << i;
        }
      }
    }
    remotes.clear();
    ab.disconnect();
    ba.disconnect();
    here.clear();
    there.clear();
    a.reset();
    b.reset();
  }
}

TEST_F(TcpGpu, a_write_ends_and_its_message_comes_when_the_gpu_has_unpacked_it) {
  open();
  const Memory mine = memory(-1, 100'000, 1), theirs = memory(0, 100'000, 2);
  const Region here(*a, mine), there(*b, theirs);
  const Remote remote(ab, there.facts());
  Request write(*a, HEADRACE_WRITE, &ab, uniform_side(here.handle(), 0, 100, 100),
                uniform_side(remote.handle(), 0, 100, 100), 1000);
  ASSERT_TRUE(write.run().status.ok());
  fill_pattern(mine.bytes(), 3);
  const Bytes before(theirs.bytes().begin(), theirs.bytes().end());
  driver().hold();
  const int launches = driver().calls("cuLaunchKernelEx");
  write.post("they are there");
  ASSERT_TRUE(soon([&] { return driver().calls("cuLaunchKernelEx") > launches; }));
  settle();
  EXPECT_TRUE(write.in_flight());
  EXPECT_EQ(b->host().message_count(), 0U);
  EXPECT_TRUE(same_bytes(theirs.bytes(), before));
  Bytes seen;
  b->host().on_received = [&](const HostMessage&) {
    seen.assign(theirs.bytes().begin(), theirs.bytes().end());
  };
  driver().release();
  ASSERT_TRUE(write.wait().status.ok());
  ASSERT_TRUE(world.until([&] { return b->host().message_count() == 1; }));
  EXPECT_TRUE(same_bytes(mine.bytes(), seen)) << "whoever hears of the write finds its bytes";
  b->host().on_received = nullptr;
}

TEST_F(TcpGpu, host_memory_is_read_and_messages_pass_while_a_gpu_is_busy) {
  open();
  const Memory on_gpu = memory(0, 8 << 20, 1), on_gpu_there = memory(0, 8 << 20, 2),
               mine = memory(-1, 10'000, 3), theirs = memory(-1, 10'000, 4);
  const Region gpu_here(*a, on_gpu), gpu_there(*b, on_gpu_there), here(*a, mine), there(*b, theirs);
  const Remote gpu_remote(ab, gpu_there.facts()), remote(ab, there.facts());
  Request slow(*a, HEADRACE_WRITE, &ab, uniform_side(gpu_here.handle(), 0, 4096, 4096),
               uniform_side(gpu_remote.handle(), 0, 4096, 4096), 2048);
  Request quick(*a, HEADRACE_READ, &ab, uniform_side(here.handle(), 0, 10, 10),
                uniform_side(remote.handle(), 0, 10, 10), 1000);
  driver().hold();
  slow.post();
  const PostEnd end = quick.run();
  EXPECT_TRUE(end.status.ok()) << end.text;
  EXPECT_TRUE(same_bytes(mine.bytes(), theirs.bytes()));
  ab.send(world, HEADRACE_CHANNEL_USER, "passes");
  EXPECT_TRUE(world.until([&] { return b->host().message_count() == 1; })) << world.describe();
  EXPECT_TRUE(slow.in_flight());
  driver().release();
  EXPECT_TRUE(slow.wait().status.ok());
  EXPECT_TRUE(same_bytes(on_gpu.bytes(), on_gpu_there.bytes()));
}

TEST_F(TcpGpu, a_read_of_gpu_memory_right_behind_one_of_host_memory_passes_through_the_ring) {
  open({{"sockets", "1"}, {"chunk_bytes", "4KiB"}});
  const Memory mine = memory(-1, 8192, 1), on_host = memory(-1, 4096, 2), on_gpu = memory(0, 4096, 3);
  const Region here(*a, mine), host_there(*b, on_host), gpu_there(*b, on_gpu);
  const Remote host_remote(ab, host_there.facts()), gpu_remote(ab, gpu_there.facts());
  PageSide theirs = uniform_side(host_remote.handle(), 0, 4096, 4096);
  theirs.regions.push_back(gpu_remote.handle());
  theirs.region_of = {0, 1};
  theirs.offsets = {0, 0};
  // Both chunks are asked for in one batch, and both answers wait when the owner puts together its own.
  Request read(*a, HEADRACE_READ, &ab, uniform_side(here.handle(), 0, 4096, 4096), theirs, 2);
  for (int i = 0; i < 10; ++i) {
    const int copies = driver().calls("cuMemcpyAsync");
    ASSERT_TRUE(read.run().status.ok());
    EXPECT_EQ(driver().calls("cuMemcpyAsync"), copies + 1) << "sockets know nothing of a GPU's memory";
    EXPECT_TRUE(same_bytes(mine.bytes().first(4096), on_host.bytes()));
    EXPECT_TRUE(same_bytes(mine.bytes().last(4096), on_gpu.bytes()));
  }
}

TEST_F(TcpGpu, what_a_busy_gpu_leaves_no_room_for_waits_in_the_socket_and_is_not_lost) {
  open({{"sockets", "1"},
        {"gpu_chunk_bytes", "64KiB"},
        {"gpu_ring_bytes", "128KiB"},
        {"heartbeat_interval", "20ms"},
        {"heartbeat_timeout", "1s"}});
  const Memory mine = memory(-1, 4 << 20, 1), theirs = memory(0, 4 << 20, 2);
  const Region here(*a, mine), there(*b, theirs);
  const Remote remote(ab, there.facts());
  Request write(*a, HEADRACE_WRITE, &ab, uniform_side(here.handle(), 0, 4096, 4096),
                uniform_side(remote.handle(), 0, 4096, 4096), 1024);
  driver().hold();
  write.post();
  settle();
  // Longer than silence may last.
  (void)world.until([&] { return ab.lost(); }, std::chrono::milliseconds(1500));
  EXPECT_FALSE(ab.lost());
  EXPECT_TRUE(write.in_flight());
  EXPECT_LT(b->host().counter("received_bytes"), 1U << 20) << "the ring holds 128 KiB";
  driver().release();
  ASSERT_TRUE(write.wait().status.ok());
  EXPECT_TRUE(same_bytes(mine.bytes(), theirs.bytes()));
}

TEST_F(TcpGpu, a_region_goes_when_the_gpu_has_ended_what_peers_made_it_do) {
  open();
  const Memory mine = memory(-1, 100'000, 1), theirs = memory(0, 100'000, 2);
  const Region here(*a, mine);
  for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
    Region there(*b, theirs);
    const Remote remote(ab, there.facts());
    Request request(*a, op, &ab, uniform_side(here.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 100);
    ASSERT_TRUE(request.run().status.ok());
    driver().hold();
    const int launches = driver().calls("cuLaunchKernelEx");
    request.post();
    ASSERT_TRUE(soon([&] { return driver().calls("cuLaunchKernelEx") > launches; }));
    WaitingCall owner([&] { there.deregister(); });
    EXPECT_TRUE(owner.waits()) << "a kernel still touches it";
    driver().release();
    EXPECT_TRUE(request.wait().status.ok());
    owner.join();
  }
}

TEST_F(TcpGpu, a_canceled_read_ends_when_no_gpu_writes_its_memory_any_more) {
  open();
  const Memory mine = memory(0, 100'000, 1), theirs = memory(-1, 100'000, 2);
  const Region here(*a, mine), there(*b, theirs);
  const Remote remote(ab, there.facts());
  Request read(*a, HEADRACE_READ, &ab, uniform_side(here.handle(), 0, 1000, 1000),
               uniform_side(remote.handle(), 0, 1000, 1000), 100);
  ASSERT_TRUE(read.run().status.ok());
  driver().hold();
  const int launches = driver().calls("cuLaunchKernelEx");
  read.post();
  ASSERT_TRUE(soon([&] { return driver().calls("cuLaunchKernelEx") > launches; }));
  read.cancel();
  settle();
  EXPECT_TRUE(read.in_flight());
  driver().release();
  const Status status = read.wait().status;
  EXPECT_TRUE(status.ok() || status.code == Code::canceled) << code_name(status.code);
  ASSERT_TRUE(read.run().status.ok());
  EXPECT_TRUE(same_bytes(mine.bytes(), theirs.bytes()));
}

TEST_F(TcpGpu, a_link_that_ends_waits_for_the_gpu_and_gives_all_back) {
  {  // what opening costs for good
    open();
    const Memory mine = memory(0, 1000, 1);
    const Region here(*a, mine);
  }
  ab.disconnect();
  ba.disconnect();
  a.reset();
  b.reset();
  const auto before = driver().live();
  {
    open();
    const Memory mine = memory(0, 3 << 20, 1), theirs = memory(0, 3 << 20, 2);
    const Region here(*a, mine), there(*b, theirs);
    const Remote remote(ab, there.facts());
    Request write(*a, HEADRACE_WRITE, &ab, uniform_side(here.handle(), 0, 4096, 4096),
                  uniform_side(remote.handle(), 0, 4096, 4096), 768);
    ASSERT_TRUE(write.run().status.ok());
    EXPECT_GT(driver().live().pinned, before.pinned);
    driver().hold();
    const int copies = driver().calls("cuMemcpyAsync");
    write.post();
    ASSERT_TRUE(soon([&] { return driver().calls("cuMemcpyAsync") > copies; }));
    WaitingCall closes([&] { ab.disconnect(); });
    EXPECT_TRUE(closes.waits()) << "the GPU still reads the memory";
    driver().release();
    closes.join();
    EXPECT_FALSE(write.in_flight());
    set_bytes(mine.bytes(), std::byte{7});  // nobody reads it any more
    ba.disconnect();
  }
  a.reset();
  b.reset();
  EXPECT_EQ(driver().live(), before);
}

TEST_F(TcpGpu, what_a_gpu_refuses_ends_the_request_and_not_the_process) {
  open();
  const Memory mine = memory(0, 100'000, 1), theirs = memory(0, 100'000, 2), host = memory(-1, 100'000, 3);
  const Region here(*a, mine), there(*b, theirs), host_here(*a, host);
  const Remote remote(ab, there.facts());
  const auto run = [&](headrace_op_v1 op, const Region& local) {
    Request request(*a, op, &ab, uniform_side(local.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 100);
    return request.run();
  };
  ASSERT_TRUE(run(HEADRACE_WRITE, here).status.ok());
  // The owner's GPU, which unpacks; which gathers; and ours, which unpacks.
  driver().fail("cuLaunchKernelEx", cuda::Outcome::unknown);
  PostEnd end = run(HEADRACE_WRITE, host_here);
  EXPECT_EQ(end.status.code, Code::backend_failed);
  EXPECT_THAT(end.text, HasSubstr("GPU"));
  driver().fail("cuLaunchKernelEx", cuda::Outcome::unknown);
  EXPECT_EQ(run(HEADRACE_READ, host_here).status.code, Code::backend_failed);
  driver().fail("cuLaunchKernelEx", cuda::Outcome::unknown, 2);
  end = run(HEADRACE_READ, here);
  EXPECT_EQ(end.status.code, Code::backend_failed);
  EXPECT_THAT(end.text, HasSubstr("CUDA_ERROR_UNKNOWN"));
  EXPECT_TRUE(run(HEADRACE_WRITE, here).status.ok()) << "the link goes on";
  EXPECT_FALSE(ab.lost());
  // Ours, which gathers: the peer may wait for what will not come, so the link ends.
  driver().fail("cuLaunchKernelEx", cuda::Outcome::unknown);
  EXPECT_EQ(run(HEADRACE_WRITE, here).status.code, Code::backend_failed);
  EXPECT_TRUE(world.until([&] { return ab.lost(); }));
}

TEST_F(TcpGpu, a_request_that_finds_no_memory_for_the_ring_says_so) {
  open();
  const Memory mine = memory(0, 100'000, 1), theirs = memory(-1, 100'000, 2);
  const Region here(*a, mine), there(*b, theirs);
  const Remote remote(ab, there.facts());
  for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
    Request request(*a, op, &ab, uniform_side(here.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 100);
    if (op == HEADRACE_WRITE) {  // the first also makes what kernels keep
      ASSERT_TRUE(request.run().status.ok());
      continue;
    }
    driver().fail("cuMemHostAlloc", cuda::Outcome::out_of_memory);
    const PostEnd end = request.run();
    EXPECT_EQ(end.status.code, Code::exhausted) << end.text;
    EXPECT_THAT(end.text, HasSubstr("pinned"));
    EXPECT_TRUE(request.run().status.ok()) << "the next try";
  }
  EXPECT_TRUE(same_bytes(mine.bytes(), theirs.bytes()));
}

TEST_F(TcpGpu, memory_that_its_owner_freed_while_it_was_registered_is_not_found) {
  open();
  const Memory mine = memory(-1, 10'000, 1);
  auto theirs = std::make_unique<Memory>(memory(0, 10'000, 2));
  const Region here(*a, mine), there(*b, *theirs);
  const Remote remote(ab, there.facts());
  theirs.reset();
  for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
    Request request(*a, op, &ab, uniform_side(here.handle(), 0, 100, 100),
                    uniform_side(remote.handle(), 0, 100, 100), 100);
    EXPECT_EQ(request.run().status.code, Code::not_found) << op;
  }
  EXPECT_FALSE(ab.lost());
}

}  // namespace
}  // namespace headrace::test
