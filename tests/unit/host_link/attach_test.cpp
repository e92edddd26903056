// SPDX-License-Identifier: Apache-2.0
#include "host_link/attach.hpp"

#include "support/child_ending.hpp"
#include "support/forbidden_call.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace headrace::host_link {
namespace {

struct TwoPages {
  std::byte* base = static_cast<std::byte*>(
      ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  TwoPages() { ::munmap(base + 4096, 4096); }  // a hole in the middle
  ~TwoPages() {
    ::munmap(base, 4096);
    ::munmap(base + 2 * 4096, 4096);
  }
};

TEST(Attach, says_how_far_it_came_and_why_it_stopped) {
  const TwoPages pages;
  std::vector<std::byte> target(3 * 4096);
  for (const Direction direction : {Direction::from_peer, Direction::to_peer}) {
    std::vector<iovec> local, remote;
    for (std::size_t i = 0; i < 3; ++i) {
      local.push_back({target.data() + i * 4096, 4096});
      remote.push_back({pages.base + i * 4096, 4096});
    }
    const AttachResult result = attach_copy(::getpid(), direction, local, remote, 3 * 4096);
    EXPECT_EQ(result.bytes, 4096U);
    EXPECT_EQ(result.os_error, EFAULT);
  }
}

TEST(Attach, to_a_process_that_is_gone_is_esrch) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_TRUE(test::ends_well(child));
  std::uint64_t value = 0;
  const iovec local{&value, 8}, remote{&value, 8};
  EXPECT_EQ(attach_copy(child, Direction::from_peer, {&local, 1}, {&remote, 1}, 8).os_error, ESRCH);
}

TEST(Attach, is_proved_by_the_nonce_and_by_nothing_else) {
  const std::uint64_t value = 0x1234567;
  const auto address = reinterpret_cast<std::uintptr_t>(&value);
  EXPECT_EQ(why_no_attach(::getpid(), {address, value}), "");
  EXPECT_NE(why_no_attach(::getpid(), {address, value + 1}).find("is not the peer"), std::string::npos);
  EXPECT_NE(why_no_attach(0, {address, value}).find("PID namespace"), std::string::npos);
  EXPECT_NE(why_no_attach(::getpid(), {8, value}).find("bad address"), std::string::npos);
}

TEST(Attach, that_the_kernel_forbids_is_told_with_what_to_do) {
  const std::uint64_t value = 0x1234567;
  const Nonce nonce{reinterpret_cast<std::uintptr_t>(&value), value};
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EPERM, [&] {
    const std::string why = why_no_attach(::getpid(), nonce);
    return why.find("ptrace_scope") != std::string::npos && why.find("seccomp") != std::string::npos &&
           why.find("allocate") != std::string::npos;
  }));
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, ENOSYS, [&] {
    return why_no_attach(::getpid(), nonce).find("seccomp") != std::string::npos;
  }));
}

}  // namespace
}  // namespace headrace::host_link
