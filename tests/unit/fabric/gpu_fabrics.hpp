// SPDX-License-Identifier: Apache-2.0
// Two fabrics, one of which has memory of a GPU of the fake driver. The other one has a single card.
#pragma once

#include "fabric/core.hpp"
#include "gpu/device_memory.hpp"
#include "rail/shm/provider.hpp"
#include "rail/tcp/provider.hpp"
#include "support/fake_cuda.hpp"
#include "support/temporary_folder.hpp"
#include "unit/fabric/two_fabrics.hpp"
#include "unit/rail/shm/fake_gpus.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace headrace::test_fabric {

inline constexpr std::size_t room_bytes = 5 << 20;

enum class By : std::uint8_t { sockets, shared_memory };

/// `there` has memory of a GPU; `here` has one card, so it says how bytes travel.
class GpuFabrics {
 public:
  explicit GpuFabrics(By by = By::sockets, std::chrono::nanoseconds peers_close_within = 10s)
      : close_within(peers_close_within),
        here(open(by == By::sockets, by == By::shared_memory)),
        there(open(true, true)) {
    memory = register_vram(FabricAccess::local);
    shared = register_vram(FabricAccess::writable);
    peer = value_of(here.connect(there.address()));
    std::memset(content(), 0, room_bytes);
  }
  /// All of it, with `there`.
  FabricMemory register_vram(FabricAccess access) {
    return value_of(there.register_memory({.address = reinterpret_cast<void*>(vram.address()),
                                           .length_bytes = vram.bytes(),
                                           .kind = MemoryKind::vram,
                                           .device = 0},
                                          access, 0));
  }
  [[nodiscard]] std::uint8_t* content() const { return reinterpret_cast<std::uint8_t*>(vram.address()); }
  /// Frees the memory, which stays registered; other memory has its address afterwards.
  gpu::DeviceMemory free_and_allocate_again() {
    const auto before = vram.address();
    vram = {};
    auto other = allocate();
    EXPECT_EQ(other.address(), before) << "the fake gives the address again";
    return other;
  }
  [[nodiscard]] bool has_come(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return std::memcmp(content() + to, block.bytes.data() + from, bytes) == 0;
  }
  Result<FabricWork> send(std::uint64_t from, std::uint64_t bytes) {
    return here.send(peer, block.memory, from, bytes);
  }
  Result<FabricWork> receive(std::uint64_t to, std::uint64_t bytes, const FabricPost& post = {}) {
    return there.receive(memory, to, bytes, post);
  }

  cuda::FakeCuda fake;
  const test::TemporaryFolder folder;
  std::mt19937_64 random{7};
  gpu::DeviceMemory vram = allocate();
  const std::chrono::nanoseconds close_within;
  Fabric here, there;
  Block block{here, random_bytes(room_bytes, random), FabricAccess::local};
  FabricMemory memory, shared;  ///< both are all of the GPU's: for this side alone, and for peers
  FabricPeer peer;

 private:
  gpu::DeviceMemory allocate() {
    return value_of(gpu::DeviceMemory::allocate(value_of(gpu::Device::open(*fake.load(), 0)), room_bytes));
  }
  Fabric open(bool sockets, bool shared_memory) {
    std::vector<fabric::OpenGroup> groups(1);
    const auto add = [&](std::unique_ptr<rail::Provider> provider, const char* name) {
      groups[0].providers.push_back(std::move(provider));
      groups[0].shown.nics.push_back({.name = name, .provider = {}, .address = {}, .why = {}});
    };
    if (sockets) add(value_of(rail::tcp::TcpProvider::open("127.0.0.1", {}, {})), "127.0.0.1");
    rail::shm::Options options;
    options.gpus = rail::gpus_of(fake);
    if (shared_memory) add(value_of(rail::shm::ShmProvider::open(folder.path(), options)), "this host");
    fabric::CoreSetup setup;
    setup.peers_close_within = close_within;
    setup.driver = [this] { return fake.load(); };
    return value_of(fabric::Core::open(std::move(groups), setup));
  }
};

}  // namespace headrace::test_fabric
