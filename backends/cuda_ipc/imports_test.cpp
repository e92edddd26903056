// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/imports.hpp"

#include "support/fake_gpus.hpp"
#include "support/fake_kernels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::cuda_ipc {
namespace {

using ::testing::HasSubstr;

class ImportsTest : public ::testing::Test {
 protected:
  /// GPU memory in pieces, as an owner offers it under the number of an allocation.
  struct Owned {
    Owned(const gpu::Device& device, std::size_t length)
        : memory(test::FakeGpus::of_this_process().take_shared(length)), bytes(length) {
      shared = gpu::share_memory(device, reinterpret_cast<cuda::Address>(memory.base), length).value();
    }
    /// A region of it, `length` bytes long, with copies of its pieces.
    [[nodiscard]] WholeOffer region(std::uint64_t allocation, std::uint64_t offset,
                                    std::uint64_t length) const {
      WholeOffer whole;
      whole.offer.region_id = 5;
      whole.offer.allocation = allocation;
      whole.offer.offset = shared.offset + offset;
      whole.offer.bytes = length;
      whole.offer.uuid = "a GPU";
      whole.offer.pieces = static_cast<std::uint32_t>(shared.pieces.size());
      for (const auto& piece : shared.pieces)
        whole.pieces.push_back({UniqueFd(::fcntl(piece.descriptor.get(), F_DUPFD_CLOEXEC, 0)), piece.bytes});
      return whole;
    }
    test::MemorySource::Taken memory;
    std::size_t bytes;
    gpu::SharedMemory shared;
  };

  ImportsTest() : gpu(gpus.open(0).value()) {}

  gpu::Gpus gpus{
      {[] { return test::FakeGpus::of_this_process().driver().load(); },
       [] { return gpu::KernelLibrary::from_table(cuda::fake_kernels_table(), "the fake library"); }},
      {}};
  std::shared_ptr<const WorkingGpu> gpu;
  Imports imports;
};

TEST_F(ImportsTest, two_regions_of_one_allocation_are_reached_through_one_mapping) {
  const Owned owned(*gpu->device, 1 << 20);
  const auto first = imports.open(*gpu, owned.region(1, 0, 4096));
  const auto second = imports.open(*gpu, owned.region(1, 8192, owned.bytes - 8192));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->mapping, second->mapping);
  EXPECT_EQ(second->address, first->address + 8192);
}

TEST_F(ImportsTest, a_second_offer_that_makes_the_open_allocation_longer_is_refused) {
  const Owned owned(*gpu->device, 1 << 20), longer(*gpu->device, 8 << 20);
  const auto first = imports.open(*gpu, owned.region(1, 0, owned.bytes));
  ASSERT_TRUE(first);
  // The pieces are long enough for what it says, but they are not those that are open under this number.
  const auto second = imports.open(*gpu, longer.region(1, 0, longer.bytes));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.code(), Code::corrupt);
  EXPECT_THAT(second.error().message, HasSubstr("of an allocation of"));
}

TEST_F(ImportsTest, an_offer_beyond_its_own_pieces_is_refused) {
  const Owned owned(*gpu->device, 1 << 20);
  for (const auto& [offset, bytes] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 1 << 30}, {1 << 30, 1}, {UINT64_MAX - 4096, 8192}}) {
    const auto opened = imports.open(*gpu, owned.region(1, offset, bytes));
    ASSERT_FALSE(opened) << offset << " " << bytes;
    EXPECT_EQ(opened.code(), Code::corrupt);
  }
}

}  // namespace
}  // namespace headrace::cuda_ipc
