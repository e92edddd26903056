// SPDX-License-Identifier: Apache-2.0
#include "memory/allocation.hpp"

#include "topology/memory_nodes.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace headrace {
namespace {

TEST(allocation, an_allocation_is_zeroed_writable_and_shared_with_another_mapping_of_its_descriptor) {
  auto made = Allocation::make(10'000);
  ASSERT_TRUE(made) << made.error().message;
  const auto bytes = made->bytes();
  ASSERT_EQ(bytes.size(), 10'000U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 4096, 0U);
  EXPECT_GE(made->mapped_bytes(), bytes.size());
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
  void* const elsewhere = ::mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_SHARED, made->fd(), 0);
  ASSERT_NE(elsewhere, MAP_FAILED);
  bytes[9'999] = std::byte{7};
  EXPECT_EQ(static_cast<std::byte*>(elsewhere)[9'999], std::byte{7});
  ::munmap(elsewhere, bytes.size());
}

TEST(allocation, the_holder_of_the_descriptor_cannot_change_the_size) {
  auto made = Allocation::make(10'000);
  ASSERT_TRUE(made);
  EXPECT_EQ(::fcntl(made->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(made->fd(), 0), 0);
  EXPECT_NE(::ftruncate(made->fd(), 1 << 20), 0);
  EXPECT_NE(::fcntl(made->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(allocation, the_descriptor_is_closed_at_exec) {
  auto made = Allocation::make(1);
  ASSERT_TRUE(made);
  EXPECT_NE(::fcntl(made->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(allocation, an_allocation_is_freed_with_its_last_owner) {
  int fd = -1;
  {
    auto made = Allocation::make(4096);
    ASSERT_TRUE(made);
    fd = made->fd();
    Allocation moved = std::move(made).value();
    auto other = Allocation::make(8192);
    ASSERT_TRUE(other);
    moved = std::move(other).value();
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "a move assignment closes the old descriptor";
    fd = moved.fd();
    EXPECT_EQ(moved.bytes().size(), 8192U);
    moved.bytes()[8191] = std::byte{1};
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST(allocation, impossible_sizes_and_nodes_are_refused) {
  EXPECT_EQ(Allocation::make(0).code(), Code::invalid_argument);
  EXPECT_EQ(Allocation::make(4096, -2).code(), Code::invalid_argument);
  EXPECT_EQ(Allocation::make(4096, 5000).code(), Code::invalid_argument);
  EXPECT_EQ(Allocation::make(std::numeric_limits<std::size_t>::max()).code(), Code::exhausted);
}

TEST(allocation, a_size_beyond_the_address_space_is_exhausted_with_advice) {
  const auto made = Allocation::make(std::size_t{1} << 60);
  ASSERT_EQ(made.code(), Code::exhausted);
  EXPECT_NE(made.error().message.find("1152921504606846976 bytes"), std::string::npos)
      << made.error().message;
  EXPECT_NE(made.error().message.find("raise"), std::string::npos) << made.error().message;
}

TEST(allocation, an_allocation_without_free_descriptors_is_exhausted_and_names_the_limit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto made = Allocation::make(4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(made.code(), Code::exhausted);
  EXPECT_NE(made.error().message.find("ulimit -n"), std::string::npos) << made.error().message;
}

std::size_t free_huge_pages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  std::size_t count = 0;
  file >> count;
  return count;
}

TEST(allocation, huge_pages_come_from_the_reserved_ones_or_the_error_says_that_none_are_free) {
  const std::size_t free = free_huge_pages();
  const auto made = Allocation::make((free + 1) * (std::size_t{2} << 20), -1, true);
  ASSERT_FALSE(made);
  if (made.code() == Code::exhausted) {
    EXPECT_NE(made.error().message.find("vm.nr_hugepages"), std::string::npos) << made.error().message;
  } else {
    EXPECT_EQ(made.code(), Code::not_supported) << made.error().message;
  }
  if (free == 0) return;
  const auto fits = Allocation::make(100, -1, true);
  ASSERT_TRUE(fits) << fits.error().message;
  EXPECT_EQ(fits->mapped_bytes(), std::size_t{2} << 20);
  fits->bytes()[99] = std::byte{1};
}

TEST(allocation, an_allocation_on_a_node_is_bound_to_that_node) {
  auto made = Allocation::make(8192, 0);
  if (!made) {  // containers often forbid memory policies
    EXPECT_EQ(made.code(), Code::not_supported) << made.error().message;
    EXPECT_NE(made.error().message.find("NUMA node 0"), std::string::npos);
    return;
  }
  int mode = -1;
  unsigned long nodes[16] = {};
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, made->bytes().data(), MPOL_F_ADDR),
            0);
  EXPECT_EQ(mode, MPOL_BIND);
  EXPECT_EQ(nodes[0], 1UL);
  made->bytes()[0] = std::byte{1};
}

TEST(allocation, a_missing_node_is_refused) {
  if (std::filesystem::exists("/sys/devices/system/node/node1023")) return;
  const auto made = Allocation::make(8192, 1023);
  ASSERT_FALSE(made);
  if (made.code() == Code::not_supported) return;  // containers often forbid memory policies
  EXPECT_EQ(made.code(), Code::invalid_argument) << made.error().message;
  const std::string nodes = fmt::format("has memory on {}", fmt::join(read_memory_nodes(""), ", "));
  EXPECT_NE(made.error().message.find(nodes), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace headrace
