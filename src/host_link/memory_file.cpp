// SPDX-License-Identifier: Apache-2.0
#include "host_link/memory_file.hpp"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace headrace::host_link {

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, length_);
}

Result<Mapping> Mapping::of_file(int fd, std::uint64_t offset, std::size_t length, Access access) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const address = ::mmap(nullptr, length, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED)
    return os_error(errno, "map {} bytes at {} of memory file {}", length, offset, fd);
  return Mapping(address, length);
}

Result<Mapping> Mapping::of_file_twice(int fd, std::uint64_t offset, std::size_t length) {
  void* const room =
      ::mmap(nullptr, 2 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return os_error(errno, "reserve {} bytes of address space", 2 * length);
  Mapping mapping(room, 2 * length);
  for (int half = 0; half < 2; ++half) {
    void* const at = mapping.data() + half * length;
    if (::mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) ==
        MAP_FAILED) {
      return os_error(errno, "map {} bytes at {} of memory file {}", length, offset, fd);
    }
  }
  return mapping;
}

Result<UniqueFd> create_memory_file(const char* name, std::uint64_t size_bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return os_error(errno, "create the memory file {}", name);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) < 0)
    return os_error(errno, "size the memory file {} to {} bytes", name, size_bytes);
  return fd;
}

Result<void> seal_memory_file(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) < 0) return os_error(errno, "seal memory file {}", fd);
  return {};
}

Result<MemoryFile> inspect_memory_file(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0)
    return os_error(Code::corrupt, errno, "a descriptor that came from the peer is no memory file");
  if ((seals & F_SEAL_SHRINK) == 0) {
    return make_error(Code::corrupt,
                      "a memory file that came from the peer could shrink (its seals are {:#x}): not mapped",
                      seals);
  }
  struct stat found {};
  struct statfs system {};
  if (::fstat(fd, &found) < 0) return os_error(errno, "look at a memory file that came from the peer");
  if (::fstatfs(fd, &system) < 0)
    return os_error(errno, "look at the file system of a memory file that came from the peer");
  MemoryFile file;
  file.size_bytes = static_cast<std::uint64_t>(found.st_size);
  file.writable = (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
  // Huge pages must be mapped whole; ordinary memory files, also those with transparent huge pages, need not.
  file.page_bytes = system.f_type == HUGETLBFS_MAGIC ? static_cast<std::uint64_t>(system.f_bsize)
                                                     : static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return file;
}

}  // namespace headrace::host_link
