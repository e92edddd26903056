// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/pieces.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace headrace::cuda {
namespace {

constexpr std::size_t long_bytes = 64 << 10;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADRACE_FAKE_UNWATCHED __attribute__((no_sanitize("thread")))
#endif
#endif

#ifdef HEADRACE_FAKE_UNWATCHED
/// A loop: the sanitizer hears of each call of memset.
HEADRACE_FAKE_UNWATCHED void fill_unwatched(Address where, unsigned char value, std::size_t bytes) {
  auto* const words = static_cast<volatile std::uint64_t*>(pointer(where));
  const std::uint64_t word = value * 0x0101010101010101U;
  for (std::size_t i = 0; i < bytes / sizeof word; ++i) words[i] = word;
}
#else
void fill_unwatched(Address where, unsigned char value, std::size_t bytes) {
  std::memset(pointer(where), value, bytes);
}
#endif

}  // namespace

std::string file_name(std::uint64_t id, Device device) {
  return "headrace-fake-cuda-" + std::to_string(id) + "-gpu-" + std::to_string(device);
}

std::string name_behind(const std::string& descriptor) {
  char name[128] = {};
  return ::readlink(descriptor.c_str(), name, sizeof name - 1) < 0 ? std::string() : std::string(name);
}

int new_file(std::uint64_t id, std::size_t bytes, Device device) {
  const int fd = ::memfd_create(file_name(id, device).c_str(), MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(round_up(bytes, page_bytes))) == 0) return fd;
  std::perror("fake CUDA: memfd");
  std::abort();
}

Address map_file(int fd, std::size_t bytes, Address where) {
  void* const at = ::mmap(pointer(where), round_up(bytes, page_bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED | (where != 0 ? MAP_FIXED : 0), fd, 0);
  return at == MAP_FAILED ? 0 : address_of(at);
}

void fill_memory(Address where, unsigned char value, std::size_t bytes) {
  const std::size_t watched = bytes < 2 * long_bytes ? bytes : long_bytes + bytes % page_bytes;
  std::memset(pointer(where), value, watched);
  if (watched == bytes) return;
#ifdef MADV_POPULATE_WRITE
  // All pages in one call instead of one fault each. A kernel before 5.14 refuses, and the faults come.
  const Address from = round_up(where + watched, page_bytes), to = (where + bytes) / page_bytes * page_bytes;
  static_cast<void>(::madvise(pointer(from), to - from, MADV_POPULATE_WRITE));
#endif
  fill_unwatched(where + watched, value, bytes - watched);
}

void make_unreachable(Address address, std::size_t bytes) {
  if (::mmap(pointer(address), round_up(bytes, page_bytes), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    std::abort();  // the memory would stay reachable, and tests would pass that show that it is not
}

FakePieces::~FakePieces() {
  for (auto& [address, piece] : pieces_)
    if (piece.kind != Piece::Kind::registered) ::munmap(pointer(address), piece.mapped_bytes);
  for (auto& [address, piece] : pieces_)
    if (piece.fd >= 0) ::close(piece.fd);
  for (auto& [bytes, address] : freed_) ::munmap(pointer(address), round_up(bytes, page_bytes));
}

Address FakePieces::allocate(std::size_t bytes, Piece::Kind kind, Device device) {
  Address where = 0;
  if (const auto again = freed_.find(bytes); again != freed_.end()) {
    where = again->second;
    freed_.erase(again);
  }
  Piece piece;
  piece.bytes = bytes;
  piece.mapped_bytes = round_up(bytes, page_bytes);
  piece.kind = kind;
  piece.device = device;
  piece.id = ids_.next();
  piece.fd = new_file(piece.id, bytes, device);
  where = map_file(piece.fd, bytes, where);
  fill_memory(where, 0xa5, bytes);
  pieces_[where] = piece;
  return where;
}

Outcome FakePieces::free(Address address, Piece::Kind kind) {
  const auto found = pieces_.find(address);
  if (found == pieces_.end() || found->second.kind != kind) return Outcome::invalid_value;
  if (found->second.fd >= 0) ::close(found->second.fd);
  make_unreachable(address, found->second.bytes);
  freed_.emplace(found->second.bytes, address);
  pieces_.erase(found);
  return Outcome::success;
}

FakePieces::Map::const_iterator FakePieces::with(Address address, std::size_t bytes) const {
  auto found = pieces_.upper_bound(address);
  if (found == pieces_.begin()) return pieces_.end();
  --found;
  const bool inside =
      address - found->first < found->second.bytes && found->second.bytes - (address - found->first) >= bytes;
  return inside ? found : pieces_.end();
}

bool FakePieces::any_in(Address address, std::size_t bytes) const {
  const auto next = pieces_.lower_bound(address);
  return next != pieces_.end() && next->first < address + bytes;
}

int FakePieces::count(Piece::Kind kind) const {
  return static_cast<int>(
      std::ranges::count_if(pieces_, [kind](const auto& entry) { return entry.second.kind == kind; }));
}

std::size_t FakePieces::allocated_bytes(Device device) const {
  std::size_t bytes = 0;
  for (const auto& [address, piece] : pieces_)
    if (piece.kind == Piece::Kind::device && piece.device == device) bytes += piece.bytes;
  return bytes;
}

bool FakePieces::reachable(Address address, std::size_t bytes) const {
  if (bytes == 0) return true;
  // Mappings that touch count as one, as in growing segments.
  while (true) {
    const auto found = with(address);
    if (found == pieces_.end() || !found->second.accessible) return false;
    const std::size_t there = found->second.bytes - (address - found->first);
    if (there >= bytes) return true;
    address += there;
    bytes -= there;
  }
}

bool FakePieces::touchable(Address address, std::size_t bytes) const {
  return with(address) == pieces_.end() ? address != 0 : reachable(address, bytes);
}

}  // namespace headrace::cuda
