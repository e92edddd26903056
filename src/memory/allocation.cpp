// SPDX-License-Identifier: Apache-2.0
#include "memory/allocation.hpp"

#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace headrace {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Puts the pages on one node when they are first touched. By system call: libnuma would be a dependency for this alone.
Result<void> place(std::span<std::byte> mapped, int node) {
  if (node < 0) return {};
  constexpr unsigned bits = 1024;
  if (node >= static_cast<int>(bits)) return make_error(Code::invalid_argument, "there is no NUMA node {}", node);
  unsigned long mask[bits / (8 * sizeof(unsigned long))] = {};
  mask[static_cast<unsigned>(node) / (8 * sizeof(unsigned long))] |= 1ul << (static_cast<unsigned>(node) % (8 * sizeof(unsigned long)));
  if (::syscall(SYS_mbind, mapped.data(), mapped.size(), MPOL_BIND, mask, bits, 0) == 0) return {};
  if (errno == ENOSYS && node == 0) return {};  // a kernel without NUMA has node 0 alone
  return os_error(Code::invalid_argument, errno, "place memory on NUMA node {}", node);
}

}  // namespace

Result<Allocation> Allocation::make(std::size_t bytes, int numa_node, bool huge_pages) {
  if (bytes == 0) return make_error(Code::invalid_argument, "an allocation has at least one byte");
  const std::size_t page = huge_pages ? huge_page_bytes : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - page || bytes > static_cast<std::size_t>(INT64_MAX) - page) return make_error(Code::exhausted, "{} bytes are more than a process can map", bytes);
  const std::size_t mapped = (bytes + page - 1) / page * page;

  UniqueFd fd(::memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge_pages ? MFD_HUGETLB | MFD_HUGE_2MB : 0u)));
  if (!fd) return os_error(errno, "allocate {} bytes: create a memfd", bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(mapped)) != 0) return os_error(Code::exhausted, errno, "allocate {} bytes (look at the limits of memory and file size)", bytes);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return os_error(errno, "seal an allocation of {} bytes", bytes);
  void* const address = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    if (huge_pages) return os_error(Code::exhausted, errno, "allocate {} bytes in 2 MiB pages: reserve {} more in /proc/sys/vm/nr_hugepages, or do without them", bytes, mapped / page);
    return os_error(Code::exhausted, errno, "map an allocation of {} bytes (look at the limits of address space and memory)", bytes);
  }
  Allocation made(std::move(fd), {static_cast<std::byte*>(address), bytes}, mapped);
  HEADRACE_TRY_VOID(place({static_cast<std::byte*>(address), mapped}, numa_node));
  return made;
}

Allocation::~Allocation() {
  if (mapped_ != 0) ::munmap(bytes_.data(), mapped_);
}

}  // namespace headrace
