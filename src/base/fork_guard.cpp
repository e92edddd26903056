// SPDX-License-Identifier: Apache-2.0
#include "base/fork_guard.hpp"

#include <sys/mman.h>

#include <new>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace headrace {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

ForkGuard::ForkGuard() noexcept : made_in_(::getpid()) {
  void* page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    ::munmap(page, page_bytes());
    return;
  }
  alive_ = new (page) std::atomic<std::uint32_t>(1);
}

ForkGuard::~ForkGuard() {
  if (alive_ != nullptr) ::munmap(alive_, page_bytes());
}

}  // namespace headrace
