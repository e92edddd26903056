// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs and the NIC of this host, over the fake driver.
#include "gpu/device_memory.hpp"
#include "gpu/shareable_memory.hpp"
#include "support/fake_cuda.hpp"
#include "unit/rail/shm/fake_gpus.hpp"
#include "unit/rail/shm/near_process.hpp"
#include "unit/rail/shm/two_nics.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace headrace::rail::cuda_ipc {
namespace {

using shm::test_nics::connect;
using shm::test_nics::Kind;
using shm::test_nics::NearNic;
using shm::test_nics::NearProcess;

constexpr std::size_t gpu_bytes = 300'000;

shm::Options over(cuda::FakeCuda& fake) {
  shm::Options options;
  options.gpus = gpus_of(fake);
  return options;
}

/// GPU memory of a process, registered with a NIC.
struct GpuSide {
  GpuSide(cuda::FakeCuda& fake, NearNic& nic, Access access = Access::peers_read_and_write)
      : memory(gpu::DeviceMemory::allocate(gpu::Device::open(*fake.load(), 0).value(), gpu_bytes).value()) {
    auto made = nic.nic->register_memory({memory.address(), gpu_bytes, 0, access});
    EXPECT_TRUE(made) << made.error().message;
    registered = *made;
  }
  [[nodiscard]] char* bytes() const { return reinterpret_cast<char*>(memory.address()); }
  void fill(char first) const {
    for (std::size_t i = 0; i < gpu_bytes; ++i) bytes()[i] = static_cast<char>(first + i % 89);
  }

  gpu::DeviceMemory memory;
  Registered registered;
};

class RailGpu : public testing::Test {
 protected:
  void SetUp() override {
    peer_ = connect(a_, b_);
    remote_gpu_ = load(gb_->registered);
    remote_host_ = load(b_.registered);
    ga_->fill('A');
    a_.fill('h');
  }
  RemoteId load(const Registered& memory) {
    auto loaded = a_.nic->load_memory(peer_, memory.key);
    EXPECT_TRUE(loaded);
    return *loaded;
  }
  Status write(MemoryId from, RemoteId to, std::uint64_t bytes, std::uint64_t token = 1) {
    const std::array moves{Move{from, to, 3, 5, bytes}};
    return a_.nic->post_write({peer_, moves, 7, token});
  }
  bool ends(std::size_t count = 1) {
    return a_.until([&] {
      b_.poll();
      return a_.count(Kind::ended) == count;
    });
  }
  static bool same(const char* from, const char* to, std::size_t bytes) {
    return std::memcmp(from + 3, to + 5, bytes) == 0;
  }

  cuda::FakeCuda fake_;
  test::TemporaryFolder folder_;
  NearNic a_{folder_.path(), gpu_bytes, over(fake_)}, b_{folder_.path(), gpu_bytes, over(fake_)};
  std::optional<GpuSide> ga_{std::in_place, fake_, a_}, gb_{std::in_place, fake_, b_};
  PeerId peer_{};
  RemoteId remote_gpu_{}, remote_host_{};
};

TEST_F(RailGpu, writes_between_memory_of_GPUs_and_of_the_host_arrive) {
  EXPECT_TRUE(a_.nic->info().gpu_memory);
  for (const std::uint64_t bytes : {10U, 100'000U}) {
    a_.events.clear();
    ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, bytes).ok());
    ASSERT_TRUE(ends());
    EXPECT_TRUE(a_.find(Kind::ended)->status.ok());
    EXPECT_TRUE(same(ga_->bytes(), gb_->bytes(), bytes));
    ASSERT_TRUE(write(ga_->registered.id, remote_host_, bytes, 2).ok());
    ASSERT_TRUE(ends(2));
    EXPECT_TRUE(same(ga_->bytes(), b_.memory.data(), bytes));
    ASSERT_TRUE(write(a_.registered.id, remote_gpu_, bytes, 3).ok());
    ASSERT_TRUE(ends(3));
    EXPECT_TRUE(same(a_.memory.data(), gb_->bytes(), bytes));
  }
  EXPECT_EQ(b_.count(Kind::marked), 6U);
}

/// Pieces of odd lengths and offsets, in another order there.
TEST_F(RailGpu, many_pieces_are_one_launch) {
  const std::uint32_t most = a_.nic->info().max_moves;
  std::vector<Move> moves;
  for (std::uint32_t i = 0; i < most; ++i)
    moves.push_back({ga_->registered.id, remote_gpu_, i * 291, (most - 1 - i) * 291, 1 + i % 290});
  ASSERT_TRUE(a_.nic->post_write({peer_, moves, 7, 1}).ok());
  ASSERT_TRUE(ends());
  EXPECT_TRUE(a_.find(Kind::ended)->status.ok());
  EXPECT_EQ(fake_.calls("headrace_move_runs"), 1);
  for (const Move& move : moves)
    ASSERT_EQ(std::memcmp(ga_->bytes() + move.local_offset, gb_->bytes() + move.remote_offset, move.bytes), 0)
        << move.local_offset;
}

TEST_F(RailGpu, reads_arrive) {
  gb_->fill('B');
  b_.fill('k');
  const auto read = [&](MemoryId to, RemoteId from, std::uint64_t token) {
    const std::array moves{Move{to, from, 5, 3, 50'000}};
    return a_.nic->post_read({peer_, moves, token});
  };
  ASSERT_TRUE(read(ga_->registered.id, remote_gpu_, 1).ok());
  ASSERT_TRUE(ends());
  EXPECT_TRUE(same(gb_->bytes(), ga_->bytes(), 50'000));
  ASSERT_TRUE(read(a_.registered.id, remote_gpu_, 2).ok());
  ASSERT_TRUE(ends(2));
  EXPECT_TRUE(same(gb_->bytes(), a_.memory.data(), 50'000));
  ASSERT_TRUE(read(ga_->registered.id, remote_host_, 3).ok());
  ASSERT_TRUE(ends(3));
  EXPECT_TRUE(same(b_.memory.data(), ga_->bytes(), 50'000));
}

TEST_F(RailGpu, a_mark_comes_when_the_GPU_has_copied) {
  fake_.hold();
  ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, 1000).ok());
  for (int i = 0; i < 10; ++i) {
    a_.poll();
    b_.poll();
  }
  EXPECT_EQ(b_.find(Kind::marked), nullptr);
  EXPECT_EQ(a_.find(Kind::ended), nullptr);
  EXPECT_FALSE(b_.nic->arm()) << "it would sleep on a copy";
  fake_.release();
  ASSERT_TRUE(ends());
  EXPECT_TRUE(same(ga_->bytes(), gb_->bytes(), 1000));
}

TEST_F(RailGpu, copies_of_several_writes_are_queued_at_once_and_end_in_order) {
  fake_.hold();
  for (std::uint64_t token = 1; token <= 3; ++token)
    ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, 1000 * token, token).ok());
  for (int i = 0; i < 5; ++i) {
    a_.poll();
    b_.poll();
  }
  EXPECT_EQ(fake_.calls("cuMemcpyAsync"), 3);
  EXPECT_EQ(b_.find(Kind::marked), nullptr);
  fake_.release();
  ASSERT_TRUE(ends(3));
  for (const Event& event : a_.events)
    if (event.kind == Kind::ended) EXPECT_TRUE(event.status.ok());
  EXPECT_TRUE(same(ga_->bytes(), gb_->bytes(), 3000));
  EXPECT_EQ(b_.count(Kind::marked), 3U);
}

TEST_F(RailGpu, a_range_outside_or_of_memory_that_is_gone_is_refused) {
  ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, gpu_bytes - 4).ok());
  ASSERT_TRUE(ends());
  EXPECT_EQ(a_.find(Kind::ended)->status.code, Code::not_found);
  std::memset(gb_->bytes(), 0, gpu_bytes);
  b_.nic->deregister(gb_->registered.id);
  ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, 100, 2).ok());
  ASSERT_TRUE(ends(2));
  EXPECT_EQ(a_.events.back().status.code, Code::not_found);
  EXPECT_EQ(b_.find(Kind::marked), nullptr);
  EXPECT_EQ(gb_->bytes()[5], 0);
}

TEST_F(RailGpu, memory_that_was_freed_is_refused_though_other_memory_has_its_address) {
  const auto address = gb_->memory.address();
  gb_->memory = {};
  const auto device = gpu::Device::open(*fake_.load(), 0).value();
  const auto other = gpu::DeviceMemory::allocate(device, gpu_bytes).value();
  ASSERT_EQ(other.address(), address) << "the fake gives the address again";
  auto* const bytes = reinterpret_cast<char*>(other.address());
  std::memset(bytes, 3, gpu_bytes);
  ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, 100).ok());
  ASSERT_TRUE(ends());
  EXPECT_EQ(a_.events.back().status.code, Code::not_found);
  const std::array moves{Move{ga_->registered.id, remote_gpu_, 0, 0, 100}};
  ASSERT_TRUE(a_.nic->post_read({peer_, moves, 2}).ok());
  ASSERT_TRUE(ends(2));
  EXPECT_EQ(a_.events.back().status.code, Code::not_found);
  EXPECT_EQ(b_.find(Kind::marked), nullptr);
  EXPECT_EQ(std::count(bytes, bytes + gpu_bytes, 3), static_cast<long>(gpu_bytes));
  EXPECT_EQ(ga_->bytes()[0], 'A');
}

TEST_F(RailGpu, deregistering_waits_for_copies_that_have_begun) {
  fake_.hold();
  ASSERT_TRUE(write(ga_->registered.id, remote_gpu_, 1000).ok());
  a_.poll();
  b_.poll();
  std::atomic<bool> gone = false;
  std::thread other([&] {
    b_.nic->deregister(gb_->registered.id);
    gone = true;
  });
  while (fake_.calls("cuStreamSynchronize") == 0) std::this_thread::yield();
  EXPECT_FALSE(gone);
  fake_.release();
  other.join();
  EXPECT_TRUE(same(ga_->bytes(), gb_->bytes(), 1000));
  std::memset(gb_->bytes(), 0, gpu_bytes);  // its next use
  EXPECT_TRUE(ends());
  EXPECT_EQ(gb_->bytes()[5], 0);
}

TEST_F(RailGpu, messages_and_receives_lie_in_host_memory) {
  EXPECT_EQ(a_.nic->post_message(peer_, {ga_->registered.id, 0, 10}, 1).code, Code::invalid_argument);
  EXPECT_EQ(a_.nic->post_receive({ga_->registered.id, 0, 10}, 1).code, Code::invalid_argument);
}

TEST_F(RailGpu, memory_that_no_GPU_has_is_refused_with_a_sentence) {
  const auto made = a_.nic->register_memory({8, 10, 0, Access::local});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.code(), Code::not_found) << made.error().message;
  EXPECT_EQ(a_.nic->register_memory({ga_->memory.address(), 10, 9, Access::local}).code(),
            Code::invalid_argument);
}

TEST_F(RailGpu, without_copies_by_the_system_memory_of_GPUs_cannot_be_written) {
  shm::Options options = over(fake_);
  options.copies = shm::Copies::through_rings;
  NearNic c(folder_.path(), gpu_bytes, options);
  a_.events.clear();
  const PeerId peer = connect(a_, c);
  GpuSide gc(fake_, c);
  const auto loaded = a_.nic->load_memory(peer, gc.registered.key);
  ASSERT_TRUE(loaded);
  const std::array moves{Move{ga_->registered.id, *loaded, 0, 0, 100}};
  EXPECT_EQ(a_.nic->post_write({peer, moves, 7, 1}).code, Code::not_supported);
}

enum class Then : std::uint8_t { deregister, keep };

/// Writes from GPU memory of its process to the peer that joins, whose memory has that key.
template <class Made>
void write_from_gpu(NearNic& nic, const Made& memory, std::uint64_t bytes, Then then = Then::deregister) {
  auto made = nic.nic->register_memory({memory.address(), bytes, 0, Access::local});
  if (!made) ::_exit(2);
  if (!nic.until([&] { return nic.find(Kind::received) != nullptr; })) ::_exit(3);
  const PeerId peer = nic.find(Kind::joined)->peer;
  const auto key = std::string(nic.memory.data(), nic.find(Kind::received)->bytes);
  const auto loaded = nic.nic->load_memory(peer, key);
  std::memset(reinterpret_cast<void*>(memory.address()), 'w', bytes);
  const std::array moves{Move{made->id, *loaded, 0, 0, bytes}};
  if (!nic.nic->post_write({peer, moves, 7, 1}).ok()) ::_exit(4);
  if (!nic.until([&] { return nic.find(Kind::ended) != nullptr; })) ::_exit(5);
  if (then == Then::deregister) nic.nic->deregister(made->id);
  for (;;) nic.poll_or_sleep();
}

/// This process opens memory of the other one, and closes it when the other one deregisters it or dies.
void take_a_write_of(const NearProcess& writer, cuda::FakeCuda& fake, NearNic& here, bool dies) {
  const cuda::FakeCuda::Live before = fake.live();
  GpuSide target(fake, here);
  const auto peer = here.nic->add_peer(writer.address, "hello");
  ASSERT_TRUE(peer) << peer.error().message;
  ASSERT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
  const std::string& key = target.registered.key;
  std::memcpy(here.memory.data(), key.data(), key.size());
  if (dies) fake.hold();
  ASSERT_TRUE(here.nic->post_message(*peer, {here.registered.id, 0, key.size()}, 1).ok());
  if (dies) {
    ASSERT_TRUE(here.until([&] { return fake.calls("cuMemcpyAsync") > 0; }));
    writer.send(SIGKILL);
    writer.wait_for_end();  // without a poll, which ends the link and then waits for the copy
    fake.release();
    ASSERT_TRUE(here.until([&] { return here.find(Kind::lost) != nullptr; }));
    EXPECT_EQ(here.find(Kind::marked), nullptr);
  } else {
    ASSERT_TRUE(here.until([&] { return here.find(Kind::marked) != nullptr; }));
    EXPECT_EQ(std::count(target.bytes(), target.bytes() + gpu_bytes, 'w'), static_cast<long>(gpu_bytes));
    EXPECT_TRUE(
        here.until([&] { return fake.live().imports == 0 && fake.live().mappings == before.mappings; }));
  }
  here.nic->drop_peer(*peer);
  here.nic->deregister(target.registered.id);
  EXPECT_TRUE(
      here.until([&] { return fake.live().imports == 0 && fake.live().mappings == before.mappings; }));
}

NearProcess plain_writer(const std::string& folder, Then then = Then::deregister) {
  return NearProcess([&] {
    static cuda::FakeCuda fake;
    NearNic nic(folder, gpu_bytes, over(fake));
    static_cast<void>(nic.nic->post_receive({nic.registered.id, 0, 4096}, 1));
    const auto memory = gpu::DeviceMemory::allocate(gpu::Device::open(*fake.load(), 0).value(), gpu_bytes);
    NearProcess::say(nic);
    write_from_gpu(nic, *memory, gpu_bytes, then);
  });
}

TEST(RailGpuProcesses, a_write_out_of_memory_by_handle_arrives_and_the_memory_is_let_go_of) {
  const test::TemporaryFolder folder;
  const NearProcess writer = plain_writer(folder.path());
  cuda::FakeCuda fake;
  NearNic here(folder.path(), gpu_bytes, over(fake));
  take_a_write_of(writer, fake, here, false);
}

TEST(RailGpuProcesses, a_write_out_of_memory_by_descriptor_arrives_and_the_memory_is_let_go_of) {
  const test::TemporaryFolder folder;
  const NearProcess writer([&] {
    static cuda::FakeCuda fake;
    NearNic nic(folder.path(), gpu_bytes, over(fake));
    static_cast<void>(nic.nic->post_receive({nic.registered.id, 0, 4096}, 1));
    const auto memory = gpu::ShareableMemory::allocate(gpu::Device::open(*fake.load(), 0).value(), gpu_bytes);
    NearProcess::say(nic);
    write_from_gpu(nic, *memory, gpu_bytes);
  });
  cuda::FakeCuda fake;
  NearNic here(folder.path(), gpu_bytes, over(fake));
  take_a_write_of(writer, fake, here, false);
}

TEST(RailGpuProcesses, a_writer_that_is_killed_while_a_GPU_copies_is_not_counted) {
  const test::TemporaryFolder folder;
  const NearProcess writer = plain_writer(folder.path());
  cuda::FakeCuda fake;
  NearNic here(folder.path(), gpu_bytes, over(fake));
  take_a_write_of(writer, fake, here, true);
}

/// A kernel that waits for what nobody does. It leaves by itself when a test that it blocks would hang.
class WaitingKernel {
 public:
  explicit WaitingKernel(cuda::FakeCuda& fake)
      : stream_(gpu::Stream::make(gpu::Device::open(*fake.load(), 0).value(), gpu::Priority::high).value()) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    fake.queue(stream_.handle(), [over = over_, late] {
      if (std::chrono::steady_clock::now() > late) *over = true;
      return over->load();
    });
  }
  ~WaitingKernel() { leave(); }
  WaitingKernel(const WaitingKernel&) = delete;
  WaitingKernel& operator=(const WaitingKernel&) = delete;

  [[nodiscard]] bool waits() const { return !*over_; }
  void leave() const {
    *over_ = true;
    EXPECT_TRUE(stream_.wait_idle());
  }

 private:
  const std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
  const gpu::Stream stream_;
};

/// The peer's memory is closed when no kernel is at work, because the driver serves no other call inside that
/// call; other peers are served meanwhile.
void serve_others_while_a_kernel_waits(Then then) {
  const test::TemporaryFolder folder;
  const NearProcess writer = plain_writer(folder.path(), then);
  cuda::FakeCuda fake;
  NearNic here(folder.path(), gpu_bytes, over(fake)), other(folder.path(), gpu_bytes);
  const GpuSide target(fake, here);
  const PeerId to_here = connect(other, here);
  const auto peer = here.nic->add_peer(writer.address, "hello");
  ASSERT_TRUE(peer) << peer.error().message;
  ASSERT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
  const WaitingKernel kernel(fake);
  const auto waits = fake.calls("cuCtxSynchronize");
  const std::string& key = target.registered.key;
  std::memcpy(here.memory.data(), key.data(), key.size());
  ASSERT_TRUE(here.nic->post_message(*peer, {here.registered.id, 0, key.size()}, 1).ok());
  ASSERT_TRUE(here.until([&] { return here.find(Kind::marked) != nullptr; }));
  if (then == Then::keep) {
    EXPECT_EQ(fake.live().imports, 1);
    writer.send(SIGKILL);
    ASSERT_TRUE(here.until([&] { return here.find(Kind::lost) != nullptr; }));
  } else {
    ASSERT_TRUE(here.until([&] { return fake.calls("cuCtxSynchronize") > waits; }));
  }
  here.nic->drop_peer(*peer);

  const auto loaded = other.nic->load_memory(to_here, here.registered.key);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const std::array moves{Move{other.registered.id, *loaded, 0, 0, 100'000}};
  ASSERT_TRUE(other.nic->post_write({to_here, moves, 7, 2}).ok());
  ASSERT_TRUE(other.until([&] {
    here.poll();
    return other.find(Kind::ended) != nullptr;
  }));
  EXPECT_TRUE(other.find(Kind::ended)->status.ok());
  EXPECT_EQ(fake.live().imports, 1);
  EXPECT_EQ(fake.calls("cuIpcCloseMemHandle"), 0);
  EXPECT_TRUE(kernel.waits()) << "something has waited for the kernel";
  kernel.leave();
  EXPECT_TRUE(here.until([&] { return fake.live().imports == 0; }));
}

TEST(RailGpuProcesses, a_peer_that_is_killed_while_a_kernel_waits_holds_up_no_other) {
  serve_others_while_a_kernel_waits(Then::keep);
}

TEST(RailGpuProcesses, a_peer_that_deregisters_while_a_kernel_waits_holds_up_no_other) {
  serve_others_while_a_kernel_waits(Then::deregister);
}

/// Takes writes into GPU memory of its process, whose key it says.
NearProcess taker(const std::string& folder) {
  return NearProcess([&] {
    static cuda::FakeCuda fake;
    NearNic nic(folder, gpu_bytes, over(fake));
    GpuSide target(fake, nic);
    nic.registered = target.registered;
    NearProcess::say(nic);
    for (;;) nic.poll_or_sleep();
  });
}

/// Memory of this process that the peer has opened.
struct OpenedThere {
  OpenedThere() : peer(here.nic->add_peer(target.address, "hello").value()) {
    EXPECT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
    const auto loaded = here.nic->load_memory(peer, target.key);
    EXPECT_TRUE(loaded);
    const std::array moves{Move{source.registered.id, *loaded, 0, 0, 1000}};
    EXPECT_TRUE(here.nic->post_write({peer, moves, 7, 1}).ok());
    EXPECT_TRUE(here.until([&] { return here.find(Kind::ended) != nullptr; }));
    EXPECT_TRUE(here.find(Kind::ended)->status.ok());
  }
  [[nodiscard]] bool is_open() const { return here.nic->is_open_at_peers(source.registered.id); }
  /// Polls for a while.
  [[nodiscard]] bool stays_open() {
    for (int i = 0; i < 100; ++i) {
      here.poll_or_sleep();
      if (!is_open()) return false;
    }
    return true;
  }

  const test::TemporaryFolder folder;
  const NearProcess target = taker(folder.path());
  cuda::FakeCuda fake;
  NearNic here{folder.path(), gpu_bytes, over(fake)};
  const GpuSide source{fake, here};
  const PeerId peer;
};

TEST(RailGpuProcesses, memory_that_was_deregistered_is_open_at_a_peer_until_that_says_otherwise) {
  OpenedThere opened;
  EXPECT_FALSE(opened.is_open()) << "it is registered yet";
  opened.target.send(SIGSTOP);
  opened.here.nic->deregister(opened.source.registered.id);
  EXPECT_TRUE(opened.is_open()) << "the peer has not been told";
  EXPECT_TRUE(opened.stays_open());
  opened.target.send(SIGCONT);
  EXPECT_TRUE(opened.here.until([&] { return !opened.is_open(); }));
}

TEST(RailGpuProcesses, memory_that_was_deregistered_is_open_at_no_peer_that_has_ended) {
  OpenedThere opened;
  opened.target.send(SIGSTOP);
  opened.here.nic->deregister(opened.source.registered.id);
  EXPECT_TRUE(opened.stays_open());
  opened.target.send(SIGKILL);
  EXPECT_TRUE(opened.here.until([&] { return !opened.is_open(); }));
}

}  // namespace
}  // namespace headrace::rail::cuda_ipc
