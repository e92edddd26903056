// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs of a fabric, over the fake driver.
#include "unit/fabric/gpu_fabrics.hpp"

#include <algorithm>
#include <cstring>
#include <future>

namespace headrace::test_fabric {
namespace {

TEST(FabricGpuMemory, is_written_and_read_by_peers_of_this_host) {
  GpuFabrics two(By::shared_memory);
  const FabricDescriptor there = two.shared.descriptor();
  expect_done(two.here.write(two.block.memory, 3, there, 5, 200'000));
  EXPECT_TRUE(two.has_come(3, 5, 200'000));
  std::memset(two.block.bytes.data(), 0, 100'000);
  expect_done(two.here.read(two.block.memory, 0, there, 5, 100'000));
  EXPECT_TRUE(two.has_come(0, 5, 100'000));
}

TEST(FabricGpuMemory, that_was_freed_is_refused_though_other_memory_has_its_address) {
  GpuFabrics two(By::shared_memory);
  Block target(two.here, std::vector<std::uint8_t>(4096), FabricAccess::writable);
  const FabricDescriptor there = two.shared.descriptor();
  expect_done(two.here.write(two.block.memory, 0, there, 0, 4096));
  const auto other = two.free_and_allocate_again();
  auto* const content = reinterpret_cast<std::uint8_t*>(other.address());
  std::memset(content, 3, room_bytes);
  // By its owner, before a byte leaves.
  expect_refused(two.there.write(two.memory, 0, target.memory.descriptor(), 0, 4096), Code::not_found,
                 "were freed, and other memory has this address now: register it again");
  // By its owner, of a peer.
  const auto written = value_of(two.here.write(two.block.memory, 0, there, 0, 4096));
  EXPECT_EQ(written.wait(long_enough).code, Code::not_found);
  EXPECT_NE(written.error().message.find("has no such memory"), std::string::npos) << written.error().message;
  EXPECT_EQ(std::count(content, content + room_bytes, 3), static_cast<long>(room_bytes));
  EXPECT_EQ(std::count(target.bytes.begin(), target.bytes.end(), 0), 4096);
  EXPECT_TRUE(two.there.deregister(two.memory));
}

/// Of a worker, until this ends.
class Standstill {
 public:
  explicit Standstill(const Fabric& fabric) {
    std::promise<void> begun;
    auto over = over_.get_future().share();
    EXPECT_TRUE(fabric::Core::of(fabric)->worker(0).push([&begun, over](fabric::Carrier&) {
      begun.set_value();
      over.wait();
    }));
    begun.get_future().wait();
  }
  ~Standstill() { over_.set_value(); }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

 private:
  std::promise<void> over_;
};

TEST(FabricGpuMemory, deregistering_waits_until_peers_have_closed_it_but_not_for_ever) {
  GpuFabrics two(By::shared_memory, 50ms);
  expect_done(two.here.read(two.block.memory, 0, two.shared.descriptor(), 5, 100'000));
  {
    const Standstill peer_stands(two.here);
    expect_refused(two.there.deregister(two.shared), Code::timed_out,
                   "a peer has not closed it within 50 ms");
    EXPECT_TRUE(two.there.deregister(two.memory)) << "no peer was shown this one";
  }
  const auto again = two.register_vram(FabricAccess::readable);
  expect_done(two.here.read(two.block.memory, 0, again.descriptor(), 5, 100'000));
  two.there.close();  // waits for no peer
}

TEST(FabricGpuMemory, is_closed_by_a_peer_that_lives_when_deregistering_returns) {
  GpuFabrics two(By::shared_memory, long_enough);
  for (int turn = 0; turn < 20; ++turn) {
    const auto memory = two.register_vram(FabricAccess::readable);
    expect_done(two.here.read(two.block.memory, 0, memory.descriptor(), 5, 100'000));
    EXPECT_TRUE(two.there.deregister(memory));
  }
}

}  // namespace
}  // namespace headrace::test_fabric
