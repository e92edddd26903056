// SPDX-License-Identifier: Apache-2.0
#include "memory/allocation.hpp"

#include "topology/memory_nodes.hpp"

#include <fmt/ranges.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace headrace {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr int max_numa_node = 1023;  // what Linux can be built for

/// The error of a step, with what the caller can do about it.
Error failed(int error_number, std::size_t bytes, bool huge_pages, const char* step) {
  const auto text = [&](Code code, const char* advice) {
    Error error = os_error(code, error_number, "allocate {} bytes: {}", bytes, step);
    error.message += advice;
    return error;
  };
  switch (error_number) {
    case ENOMEM:
    case ENOSPC:
      if (huge_pages)
        return text(Code::exhausted,
                    "; not enough 2 MiB pages are reserved and free (HugePages_Free in /proc/meminfo): raise "
                    "vm.nr_hugepages, or allocate without huge pages");
      return text(
          Code::exhausted,
          "; free memory, or raise the limit that it ran into: the container's memory, vm.overcommit_memory, "
          "`ulimit -v` or vm.max_map_count");
    case EFBIG:
      return text(Code::exhausted, "; larger than a file may be here: lower the size, or raise `ulimit -f`");
    case ENOSYS:
    case EPERM:
      return text(Code::not_supported,
                  "; the kernel or the container's filter does not allow it: register other memory instead");
    default:
      return text(code_of_errno(error_number), "");
  }
}

Result<void> place(std::byte* at, std::size_t mapped, int node, std::size_t bytes) {
  constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
  std::vector<unsigned long> mask((max_numa_node + bits) / bits, 0);
  mask[static_cast<std::size_t>(node) / bits] |= 1UL << (static_cast<std::size_t>(node) % bits);
  // The kernel takes one bit less than it is told.
  if (::syscall(SYS_mbind, at, mapped, MPOL_BIND, mask.data(), mask.size() * bits + 1, 0U) == 0) return {};
  const int error_number = errno;
  if (error_number == EINVAL)
    return make_error(
        Code::invalid_argument,
        "allocate {} bytes on NUMA node {}: no memory of such a node may be used here; this machine "
        "has memory on {}",
        bytes, node, fmt::join(read_memory_nodes(""), ", "));
  if (error_number == ENOSYS || error_number == EPERM)
    return os_error(Code::not_supported, error_number,
                    "allocate {} bytes on NUMA node {}: placing memory is not allowed here, use node -1",
                    bytes, node);
  return os_error(error_number, "allocate {} bytes on NUMA node {}", bytes, node);
}

}  // namespace

Result<Allocation> Allocation::make(std::size_t bytes, int numa_node, bool huge_pages, bool writable) {
  const std::size_t page = huge_pages ? huge_page_bytes : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr auto largest = static_cast<std::size_t>(std::numeric_limits<off_t>::max());
  if (bytes == 0) return make_error(Code::invalid_argument, "allocate 0 bytes: ask for at least one");
  if (bytes > largest - page)
    return make_error(Code::exhausted, "allocate {} bytes: no file can be that large", bytes);
  if (numa_node < -1 || numa_node > max_numa_node)
    return make_error(Code::invalid_argument,
                      "allocate {} bytes on NUMA node {}: nodes count from 0, and -1 means any", bytes,
                      numa_node);
  const std::size_t mapped = (bytes + page - 1) / page * page;

  UniqueFd fd(::memfd_create(
      "headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge_pages ? MFD_HUGETLB | MFD_HUGE_2MB : 0U)));
  if (!fd) return failed(errno, bytes, huge_pages, "make a memfd");
  if (::ftruncate(fd.get(), static_cast<off_t>(mapped)) != 0)
    return failed(errno, bytes, huge_pages, "set its size");
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return failed(errno, bytes, huge_pages, "map it");
  auto* const begin = static_cast<std::byte*>(at);
  Allocation allocation(std::move(fd), {begin, bytes}, mapped);
  // Only now: F_SEAL_FUTURE_WRITE forbids every later mapping that could be written.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (writable ? 0 : F_SEAL_FUTURE_WRITE);
  if (::fcntl(allocation.fd(), F_ADD_SEALS, seals) != 0)
    return failed(errno, bytes, huge_pages, "seal its size");
  if (numa_node >= 0) HEADRACE_TRY_VOID(place(begin, mapped, numa_node, bytes));
  return allocation;
}

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  if (this == &other) return *this;
  if (mapped_bytes_ != 0) ::munmap(bytes_.data(), mapped_bytes_);
  fd_ = std::move(other.fd_);
  bytes_ = std::exchange(other.bytes_, {});
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  return *this;
}

Allocation::~Allocation() {
  if (mapped_bytes_ != 0) ::munmap(bytes_.data(), mapped_bytes_);
}

}  // namespace headrace
