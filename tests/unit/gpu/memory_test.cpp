// SPDX-License-Identifier: Apache-2.0
#include "gpu/allocation_info.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/shareable_allocations.hpp"
#include "gpu/shareable_memory.hpp"
#include "gpu_test.hpp"
#include "support/child_ending.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

namespace headrace::gpu {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using MemoryTest = GpuTest;

TEST_F(MemoryTest, destroyed_device_memory_is_freed) {
  {
    auto memory = DeviceMemory::allocate(open(1), 1000);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory->bytes(), 1000u);
    EXPECT_TRUE(fake.reachable(memory->address(), 1000));
    EXPECT_FALSE(fake.reachable(memory->address(), 1001));
    DeviceMemory moved;
    moved = std::move(*memory);
    EXPECT_EQ(fake.live().allocations, 1);
  }
  EXPECT_EQ(fake.live(), cuda::FakeCuda::Live{});
}

TEST_F(MemoryTest, an_allocation_that_does_not_fit_is_refused_with_its_size) {
  const auto memory = DeviceMemory::allocate(open(), std::size_t{1} << 40);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.code(), Code::exhausted);
  EXPECT_THAT(memory.error().message, HasSubstr("allocate 1099511627776 bytes on GPU 0"));
}

TEST_F(MemoryTest, shareable_allocations_are_freed_by_their_addresses) {
  int opened = 0;
  {
    ShareableAllocations all([&](int ordinal) -> Result<std::shared_ptr<const Device>> {
      ++opened;
      return Device::open(driver, ordinal);
    });
    const auto first = all.allocate(0, 1000), second = all.allocate(0, 70000), other = all.allocate(1, 1);
    ASSERT_TRUE(first && second && other);
    EXPECT_EQ(opened, 2);  // one GPU each
    EXPECT_TRUE(fake.reachable(*second, 70000));
    EXPECT_TRUE(share_memory(*open(0), *second, 70000));
    EXPECT_TRUE(all.free(*first));
    EXPECT_FALSE(fake.reachable(*first, 1));
    EXPECT_TRUE(fake.reachable(*second, 70000));
    EXPECT_EQ(all.free(*first).code(), Code::not_found);
    EXPECT_EQ(all.allocate(0, 0).code(), Code::invalid_argument);
    EXPECT_EQ(all.allocate(7, 1).code(), Code::invalid_argument);
  }
  EXPECT_EQ(fake.live(), cuda::FakeCuda::Live{});
}

TEST_F(MemoryTest, shareable_memory_stays_for_those_who_have_mapped_it) {
  const auto reader = open(1);
  std::optional<PeerMemory> mapped;
  {
    auto memory = ShareableMemory::allocate(open(0), 1000);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory->bytes(), 65536u);  // of a physical allocation
    auto* const first = reinterpret_cast<unsigned char*>(memory->address());
    EXPECT_EQ(first[999], 0);
    first[999] = 7;
    const auto shared = share_memory(*open(0), memory->address(), memory->bytes());
    ASSERT_TRUE(shared) << shared.error().message;
    auto opened = PeerMemory::open(reader, *shared);
    ASSERT_TRUE(opened) << opened.error().message;
    mapped.emplace(std::move(*opened));
  }
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(mapped->address())[999], 7);
  mapped.reset();
  EXPECT_EQ(fake.live().physical, 0);
  EXPECT_EQ(fake.live().reservations, 0);
}

TEST_F(MemoryTest, shareable_memory_that_cannot_be_is_refused) {
  EXPECT_EQ(ShareableMemory::allocate(open(), 0).code(), Code::invalid_argument);
  EXPECT_EQ(ShareableMemory::allocate(open(), std::size_t{1} << 40).code(), Code::exhausted);
  fake.fail("cuMemMap", cuda::Outcome::unknown);
  EXPECT_EQ(ShareableMemory::allocate(open(), 1).code(), Code::backend_failed);
  EXPECT_EQ(fake.live().physical, 0);
  EXPECT_EQ(fake.live().reservations, 0);
}

TEST_F(MemoryTest, pinned_memory_is_zeroed_and_reachable) {
  const auto device = open();
  auto allocated = PinnedMemory::allocate(device, 4096);
  ASSERT_TRUE(allocated);
  EXPECT_EQ(allocated->bytes()[4095], std::byte{0});
  EXPECT_TRUE(fake.reachable(allocated->address(), 4096));
  std::array<std::byte, 100> own{};
  {
    auto pinned = PinnedMemory::pin(device, own);
    ASSERT_TRUE(pinned);
    EXPECT_TRUE(fake.reachable(pinned->address(), own.size()));
    {
      const auto again = PinnedMemory::pin(device, std::span(own).subspan(10, 20));
      ASSERT_TRUE(again) << "memory that is already pinned may be pinned again";
      EXPECT_EQ(again->address(), pinned->address() + 10);
    }
    EXPECT_TRUE(fake.reachable(pinned->address(), own.size()));
  }
  EXPECT_EQ(fake.live().pinned, 1);
}

TEST_F(MemoryTest, memory_that_is_pinned_in_part_is_refused) {
  const auto device = open();
  std::array<std::byte, 100> own{};
  const auto pinned = PinnedMemory::pin(device, std::span(own).first(50)).value();
  const auto whole = PinnedMemory::pin(device, own);
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.code(), Code::backend_failed);
  EXPECT_EQ(fake.live().pinned, 1);
}

TEST_F(MemoryTest, memory_whose_two_ends_are_pinned_separately_is_refused) {
  const auto device = open();
  std::array<std::byte, 100> own{};
  const auto front = PinnedMemory::pin(device, std::span(own).first(30)).value();
  const auto back = PinnedMemory::pin(device, std::span(own).last(30)).value();
  EXPECT_FALSE(PinnedMemory::pin(device, own)) << "the bytes between the two ends are not pinned";
  EXPECT_EQ(fake.live().pinned, 2);
}

TEST_F(MemoryTest, memory_that_cannot_be_mapped_after_pinning_is_unpinned) {
  const auto device = open();
  std::array<std::byte, 100> own{};
  fake.fail("cuMemHostGetDevicePointer", cuda::Outcome::not_supported, 1, 2);
  EXPECT_EQ(PinnedMemory::pin(device, own).code(), Code::not_supported);
  EXPECT_EQ(PinnedMemory::allocate(device, 100).code(), Code::not_supported);
  EXPECT_EQ(fake.live().pinned, 0);
}

TEST_F(MemoryTest, memory_at_a_reused_address_has_another_buffer_id) {
  const auto device = open();
  cuda::Address first = 0;
  std::uint64_t id = 0;
  {
    const auto memory = DeviceMemory::allocate(device, 8192).value();
    first = memory.address();
    id = identify_buffers(*device, first + 100, 50).value();
    EXPECT_EQ(identify_buffers(*device, first, 8192).value(), id);
  }
  EXPECT_EQ(identify_buffers(*device, first, 1).code(), Code::not_found);
  const auto memory = DeviceMemory::allocate(device, 8192).value();
  ASSERT_EQ(memory.address(), first) << "the fake must give out the freed address again";
  EXPECT_NE(identify_buffers(*device, first + 100, 50).value(), id);
}

TEST_F(MemoryTest, memory_is_described_by_its_allocation) {
  const auto device = open(1);
  const auto memory = DeviceMemory::allocate(device, 8192).value();
  const auto info = describe_allocation(*device, memory.address() + 5000);
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->base, memory.address());
  EXPECT_EQ(info->bytes, 8192u);
  EXPECT_EQ(info->device, 1);
  EXPECT_TRUE(info->on_device);
  EXPECT_EQ(info->sharing, Sharing::ipc);
}

TEST_F(MemoryTest, host_memory_is_not_shared_as_vram) {
  const auto device = open();
  const auto pinned = PinnedMemory::allocate(device, 100).value();
  const auto shared = share_memory(*device, pinned.address(), 100);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.code(), Code::not_supported);
  EXPECT_THAT(shared.error().message, HasSubstr("host memory"));
}

TEST_F(MemoryTest, memory_beyond_its_allocation_is_not_shared) {
  const auto device = open();
  const auto memory = DeviceMemory::allocate(device, 8192).value();
  const auto shared = share_memory(*device, memory.address() + 8000, 200);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.code(), Code::not_found);
  EXPECT_THAT(shared.error().message, HasSubstr("200 bytes"));
}

/// Physical allocations mapped side by side, as in torch's expandable segments.
class Segment {
 public:
  Segment(const Device& device, std::size_t pieces, std::size_t piece_bytes,
          cuda::HandleType handles = cuda::HandleType::file_descriptor)
      : driver_(device.driver()), pieces_(pieces), piece_bytes_(piece_bytes) {
    check(driver_.mem_address_reserve(&address, bytes(), 0, 0, 0));
    cuda::AllocationProperties properties;
    properties.handle_types = handles;
    properties.location = {cuda::LocationType::device, device.ordinal()};
    for (std::size_t i = 0; i < pieces; ++i) {
      cuda::PhysicalMemory memory = 0;
      check(driver_.mem_create(&memory, piece_bytes, &properties, 0));
      check(driver_.mem_map(address + i * piece_bytes, piece_bytes, 0, memory, 0));
      check(driver_.mem_release(memory));
    }
    const cuda::AccessDescription access{properties.location, cuda::AccessFlags::read_write};
    check(driver_.mem_set_access(address, bytes(), &access, 1));
  }
  ~Segment() {
    check(driver_.mem_unmap(address, bytes()));
    check(driver_.mem_address_free(address, bytes()));
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] std::size_t bytes() const { return pieces_ * piece_bytes_; }

  cuda::Address address = 0;

 private:
  static void check(cuda::Outcome outcome) { EXPECT_EQ(outcome, cuda::Outcome::success); }
  const cuda::DriverTable& driver_;
  std::size_t pieces_, piece_bytes_;
};

TEST_F(MemoryTest, memory_of_several_physical_allocations_is_mapped_as_one) {
  const auto device = open(), peer = open(1);
  {
    const Segment segment(*device, 3, 65536);
    std::memset(reinterpret_cast<void*>(segment.address), 0, segment.bytes());
    auto* const bytes = reinterpret_cast<unsigned char*>(segment.address);
    auto shared =
        share_memory(*device, segment.address + 65000, 67000);  // from the first allocation into the third
    ASSERT_TRUE(shared) << shared.error().message;
    EXPECT_EQ(shared->pieces.size(), 3u);
    auto mapped = PeerMemory::open(peer, *shared);
    ASSERT_TRUE(mapped) << mapped.error().message;
    shared->pieces.clear();  // the mapping outlives the descriptors
    reinterpret_cast<unsigned char*>(mapped->address())[66999] = 7;
    EXPECT_EQ(bytes[65000 + 66999], 7);
    EXPECT_TRUE(fake.reachable(mapped->address(), 67000));
  }
  EXPECT_EQ(fake.live().mappings + fake.live().physical + fake.live().reservations, 0);
}

TEST_F(MemoryTest, memory_without_an_exportable_handle_is_not_shared) {
  const auto device = open();
  const Segment segment(*device, 1, 65536, cuda::HandleType::none);
  const auto shared = share_memory(*device, segment.address, 100);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.code(), Code::not_supported);
  EXPECT_THAT(shared.error().message, AllOf(HasSubstr("cannot be shared"), HasSubstr("cudaMalloc")));
}

TEST_F(MemoryTest, a_mapping_that_fails_midway_leaves_nothing_mapped) {
  const auto device = open(), peer = open(1);
  const Segment segment(*device, 3, 65536);
  const auto shared = share_memory(*device, segment.address, segment.bytes());
  ASSERT_TRUE(shared);
  const auto before = fake.live();
  for (const char* call :
       {"cuMemMap", "cuMemImportFromShareableHandle", "cuMemSetAccess", "cuMemAddressReserve"}) {
    fake.fail(call, cuda::Outcome::out_of_memory, std::string(call) == "cuMemMap" ? 2 : 1);
    EXPECT_EQ(PeerMemory::open(peer, *shared).code(), Code::exhausted) << call;
    EXPECT_EQ(fake.live(), before) << call;
  }
}

TEST_F(MemoryTest, a_handle_of_this_process_is_not_opened) {
  const auto device = open();
  const auto memory = DeviceMemory::allocate(device, 8192).value();
  const auto shared = share_memory(*device, memory.address(), 8192);
  ASSERT_TRUE(shared);
  const auto mapped = PeerMemory::open(device, *shared);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.code(), Code::invalid_argument);
  EXPECT_THAT(mapped.error().message, HasSubstr("own memory"));
}

/// A process with a driver of its own. It owns memory until the test asks it to free the memory, and runs
/// until the test closes the pipe.
class Owner {
 public:
  Owner() {
    int there[2], back[2];
    EXPECT_EQ(::pipe(there) | ::pipe(back), 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(there[1]);  // with a copy of this end the child would never see the end of its input
      ::close(back[0]);
      own(there[0], back[1]);
      ::_exit(0);
    }
    ::close(there[0]);
    ::close(back[1]);
    to_ = UniqueFd(there[1]);
    from_ = UniqueFd(back[0]);
    EXPECT_EQ(::read(from_.get(), &shared.handle, sizeof shared.handle),
              static_cast<ssize_t>(sizeof shared.handle));
    shared.sharing = Sharing::ipc;
    shared.offset = 100;
    shared.bytes = 900;
  }
  ~Owner() {
    to_.reset();
    EXPECT_TRUE(test::ends_well(process_));
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  /// The byte at an offset of the owner's memory, read by the owner.
  unsigned char read_at(std::uint16_t offset) { return ask(offset); }
  void free() { (void)ask(0xffff); }

  SharedMemory shared;

 private:
  unsigned char ask(std::uint16_t question) {
    unsigned char answer = 0;
    EXPECT_EQ(::write(to_.get(), &question, sizeof question), static_cast<ssize_t>(sizeof question));
    EXPECT_EQ(::read(from_.get(), &answer, 1), 1);
    return answer;
  }
  static void own(int in, int out) {
    auto* const fake = new cuda::FakeCuda(1);
    const auto driver = fake->load().value();
    const auto device = Device::open(driver, 0).value();
    auto memory = DeviceMemory::allocate(device, 1000).value();
    const auto mine = share_memory(*device, memory.address() + 100, 900).value();
    ssize_t done = ::write(out, &mine.handle, sizeof mine.handle);
    std::uint16_t question = 0;
    while (done > 0 && ::read(in, &question, sizeof question) == sizeof question) {
      unsigned char answer = 0;
      if (question == 0xffff)
        memory = DeviceMemory();
      else
        answer = reinterpret_cast<unsigned char*>(memory.address())[question];
      done = ::write(out, &answer, 1);
    }
  }

  pid_t process_ = -1;
  UniqueFd to_, from_;
};

/// The owner's process is forked first: the fake driver has threads, and a process with threads must not
/// fork.
struct OwnerFirst {
  Owner owner;
};
class PeerMemoryTest : public OwnerFirst, public GpuTest {};

TEST_F(PeerMemoryTest, memory_of_another_process_is_reached_by_handle) {
  const auto device = open();
  {
    auto mapped = PeerMemory::open(device, owner.shared);
    ASSERT_TRUE(mapped) << mapped.error().message;
    const auto twice = PeerMemory::open(device, owner.shared);
    ASSERT_TRUE(twice);
    EXPECT_EQ(twice->address(), mapped->address());
    reinterpret_cast<unsigned char*>(mapped->address())[50] = 77;
    EXPECT_EQ(owner.read_at(150), 77);
    EXPECT_EQ(fake.live().imports, 1);
  }
  EXPECT_EQ(fake.live().imports, 0);
}

TEST_F(PeerMemoryTest, memory_that_its_owner_has_freed_is_not_found) {
  owner.free();
  const auto mapped = PeerMemory::open(open(), owner.shared);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.code(), Code::not_found);
  EXPECT_THAT(mapped.error().message, HasSubstr("may have been freed"));
}

TEST_F(PeerMemoryTest, memory_that_is_shorter_than_its_owner_says_is_refused) {
  const auto device = open();
  SharedMemory said;
  said.sharing = Sharing::ipc;
  said.handle = owner.shared.handle;
  said.offset = 100;
  said.bytes = std::size_t{1} << 30;
  const auto mapped = PeerMemory::open(device, said);
  EXPECT_EQ(mapped.code(), Code::corrupt);
  EXPECT_EQ(fake.live().imports, 0);
}

TEST_F(PeerMemoryTest, memory_without_peer_access_is_not_supported) {
  fake.forbid_peer_access(1, 0);
  EXPECT_EQ(PeerMemory::open(open(1), owner.shared).code(), Code::not_supported);
}

}  // namespace
}  // namespace headrace::gpu
