// SPDX-License-Identifier: Apache-2.0
#include "memory/allocation.hpp"

#include "support/forbidden_call.hpp"
#include "topology/memory_nodes.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

TEST(allocation, more_huge_pages_than_are_free_are_refused_and_the_error_says_how_to_get_more) {
  const UniqueFd possible(::memfd_create("possible", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB));
  const auto made = Allocation::make((free_huge_pages() + 1) * (std::size_t{2} << 20), -1, true);
  ASSERT_EQ(made.code(), possible ? Code::exhausted : Code::not_supported);
  EXPECT_NE(made.error().message.find(possible ? "vm.nr_hugepages" : "register other memory"),
            std::string::npos)
      << made.error().message;
}

TEST(allocation, huge_pages_come_from_the_reserved_ones) {
  if (free_huge_pages() == 0) GTEST_SKIP() << "this machine has no free huge pages";
  const auto fits = Allocation::make(100, -1, true);
  ASSERT_TRUE(fits) << fits.error().message;
  EXPECT_EQ(fits->mapped_bytes(), std::size_t{2} << 20);
  fits->bytes()[99] = std::byte{1};
}

/// Whether a process may choose the NUMA node of its memory; containers often forbid it.
bool memory_policies_are_allowed() {
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const unsigned long node_0 = 1;
  const bool allowed = ::syscall(SYS_mbind, page, 4096, MPOL_BIND, &node_0, sizeof node_0 * 8 + 1, 0U) == 0;
  ::munmap(page, 4096);
  return allowed;
}

TEST(allocation, an_allocation_on_a_node_is_bound_to_that_node) {
  if (!memory_policies_are_allowed()) GTEST_SKIP() << "this machine allows no memory policies";
  auto made = Allocation::make(8192, 0);
  ASSERT_TRUE(made) << made.error().message;
  int mode = -1;
  unsigned long nodes[16] = {};
  ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, sizeof(nodes) * 8, made->bytes().data(), MPOL_F_ADDR),
            0);
  EXPECT_EQ(mode, MPOL_BIND);
  EXPECT_EQ(nodes[0], 1UL);
  made->bytes()[0] = std::byte{1};
}

TEST(allocation, an_allocation_on_a_node_is_not_supported_where_memory_policies_are_forbidden) {
  EXPECT_TRUE(test::without_call(SYS_mbind, EPERM, [] {
    const auto made = Allocation::make(8192, 0);
    return made.code() == Code::not_supported &&
           made.error().message.find("NUMA node 0") != std::string::npos &&
           made.error().message.find("use node -1") != std::string::npos && Allocation::make(8192).ok();
  }));
}

TEST(allocation, a_missing_node_is_refused_with_the_nodes_that_have_memory) {
  const std::string nodes = fmt::format("has memory on {}", fmt::join(read_memory_nodes(""), ", "));
  EXPECT_TRUE(test::without_call(SYS_mbind, EINVAL, [&] {
    const auto made = Allocation::make(8192, 1023);
    return made.code() == Code::invalid_argument &&
           made.error().message.find("NUMA node 1023") != std::string::npos &&
           made.error().message.find(nodes) != std::string::npos;
  }));
}

TEST(allocation, the_kernel_refuses_a_missing_node) {
  if (!memory_policies_are_allowed()) GTEST_SKIP() << "this machine allows no memory policies";
  int missing = 1023;
  while (std::filesystem::exists(fmt::format("/sys/devices/system/node/node{}", missing))) --missing;
  const auto made = Allocation::make(8192, missing);
  EXPECT_EQ(made.code(), Code::invalid_argument) << made.error().message;
}

}  // namespace
}  // namespace headrace
