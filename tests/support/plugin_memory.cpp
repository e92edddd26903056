// SPDX-License-Identifier: Apache-2.0
#include "support/plugin_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace headrace::test {
namespace {

constexpr std::align_val_t plain_alignment{64};

// The sanitizers skip the writes of a pattern, which would take most of the suite's time; a function that
// they look at would not be inlined there.
#define HEADRACE_NOT_SANITIZED __attribute__((no_sanitize("thread", "address", "undefined")))

/// The word of a pattern at offset `at`.
HEADRACE_NOT_SANITIZED inline std::uint64_t word_of(std::uint64_t seed, std::uint64_t at) {
  std::uint64_t x = seed * 0x100000001b3ULL + at + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Writes a pattern, from offset `at` of it on. The caller knows that the writes stay inside `bytes`.
HEADRACE_NOT_SANITIZED void write_pattern(std::byte* bytes, std::size_t length, std::uint64_t seed,
                                          std::uint64_t at) {
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= length; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_of(seed, at + i);
    __builtin_memcpy(bytes + i, &word, sizeof word);
  }
  const std::uint64_t word = word_of(seed, at + i);
  for (std::size_t k = 0; i + k < length; ++k) bytes[i + k] = static_cast<std::byte>(word >> (8 * k));
}

/// Gives out ranges of a set of regions. Unless they may overlap, no byte is given out twice.
class Layout {
 public:
  Layout(const std::vector<std::uint64_t>& regions, bool overlapping)
      : regions_(regions), overlapping_(overlapping), used_(regions.size(), 0) {}

  std::pair<std::uint32_t, std::uint64_t> place(std::mt19937_64& random, std::uint64_t bytes) {
    const auto first = static_cast<std::uint32_t>(random() % regions_.size());
    for (std::uint32_t i = 0; i < regions_.size(); ++i) {
      const auto region = static_cast<std::uint32_t>((first + i) % regions_.size());
      if (overlapping_) {
        if (regions_[region] < bytes) continue;
        return {region, random() % (regions_[region] - bytes + 1)};
      }
      const std::uint64_t gap = random() % 3 == 0 ? random() % 5 : 0;
      const std::uint64_t at = used_[region] + gap;
      if (at + bytes > regions_[region]) continue;
      used_[region] = at + bytes;
      return {region, at};
    }
    throw std::invalid_argument(
        fmt::format("no region has {} bytes left for another page: make them larger", bytes));
  }
  /// Continues the range that was placed last in `region` and ends at `end`; false if these bytes are taken.
  bool extend(std::uint32_t region, std::uint64_t end, std::uint64_t bytes) {
    if (end + bytes > regions_[region]) return false;
    if (overlapping_) return true;
    if (used_[region] != end) return false;
    used_[region] = end + bytes;
    return true;
  }

 private:
  const std::vector<std::uint64_t>& regions_;
  bool overlapping_;
  std::vector<std::uint64_t> used_;
};

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  std::array<std::byte, 16384> block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  for (std::size_t i = 0; i < bytes.size(); i += block.size()) {
    const std::size_t length = std::min(block.size(), bytes.size() - i);
    write_pattern(block.data(), length, seed, i);
    std::memcpy(bytes.data() + i, block.data(), length);
  }
}

void fill_private(std::span<std::byte> bytes, std::uint64_t seed) {
  write_pattern(bytes.data(), bytes.size(), seed, 0);
}

Memory::Memory(Kind kind, std::size_t length_bytes, std::uint64_t seed, std::size_t skew)
    : length_(length_bytes), skew_(kind == Kind::file ? 0 : skew), is_file_(kind == Kind::file) {
  const std::size_t whole = length_ + skew_;
  if (MemorySource* const source = is_file_ ? nullptr : MemorySource::current()) {
    MemorySource::Taken taken = kind == Kind::plain ? source->take_plain(whole) : source->take_shared(whole);
    base_ = taken.base;
    owner_ = std::move(taken.owner);
    region_kind_ = source->region_kind();
    device_ = source->device();
  } else if (kind == Kind::plain) {
    base_ = static_cast<std::byte*>(::operator new(whole, plain_alignment));
  } else {
    fd_.reset(::memfd_create("headrace-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const int seals = is_file_ ? 0 : F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (!fd_ || ::ftruncate(fd_.get(), static_cast<off_t>(whole)) != 0 ||
        ::fcntl(fd_.get(), F_ADD_SEALS, seals) != 0)
      throw std::system_error(errno, std::generic_category(), "make a memfd");
    void* const at = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "map a memfd");
    base_ = static_cast<std::byte*>(at);
  }
  fill_pattern(bytes(), seed);
}

Memory::Memory(Memory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      length_(other.length_),
      skew_(other.skew_),
      is_file_(other.is_file_),
      fd_(std::move(other.fd_)),
      owner_(std::move(other.owner_)),
      region_kind_(other.region_kind_),
      device_(other.device_) {}

Memory::~Memory() {
  if (base_ == nullptr || owner_ != nullptr) return;
  if (fd_)
    ::munmap(base_, length_ + skew_);
  else
    ::operator delete(base_, plain_alignment);
}

void move_pages(const std::vector<PagePair>& pages, headrace_op_v1 op, std::vector<Bytes>& local,
                std::vector<Bytes>& remote) {
  for (const PagePair& page : pages) {
    const auto mine = std::span(local.at(page.local_region)).subspan(page.local_offset, page.bytes);
    const auto theirs = std::span(remote.at(page.remote_region)).subspan(page.remote_offset, page.bytes);
    if (op == HEADRACE_READ)
      std::ranges::copy(theirs, mine.begin());
    else
      std::ranges::copy(mine, theirs.begin());
  }
}

std::vector<PagePair> random_pages(std::mt19937_64& random, const RandomPages& shape, headrace_op_v1 op,
                                   const std::vector<std::uint64_t>& local_regions,
                                   const std::vector<std::uint64_t>& remote_regions) {
  Layout local(local_regions, op == HEADRACE_WRITE), remote(remote_regions, op == HEADRACE_READ);
  std::vector<PagePair> pages;
  pages.reserve(shape.count);
  while (pages.size() < shape.count) {
    const std::uint64_t bytes = shape.min_bytes + random() % (shape.max_bytes - shape.min_bytes + 1);
    if (!pages.empty() && random() % 100 < shape.neighbours) {
      const PagePair& last = pages.back();
      const std::uint64_t local_end = last.local_offset + last.bytes,
                          remote_end = last.remote_offset + last.bytes;
      const bool fits = local_end + bytes <= local_regions[last.local_region] &&
                        remote_end + bytes <= remote_regions[last.remote_region];
      Layout& destination = op == HEADRACE_READ ? local : remote;
      if (fits && destination.extend(op == HEADRACE_READ ? last.local_region : last.remote_region,
                                     op == HEADRACE_READ ? local_end : remote_end, bytes)) {
        pages.push_back({last.local_region, local_end, last.remote_region, remote_end, bytes});
        continue;
      }
    }
    const auto [local_region, local_offset] = local.place(random, bytes);
    const auto [remote_region, remote_offset] = remote.place(random, bytes);
    pages.push_back({local_region, local_offset, remote_region, remote_offset, bytes});
  }
  // The destinations were placed in ascending order; the pages must not come in the order of memory. The
  // rotation keeps neighbours together.
  if (shape.neighbours == 0)
    std::shuffle(pages.begin(), pages.end(), random);
  else if (pages.size() > 20)
    std::rotate(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(random() % pages.size()),
                pages.end());
  return pages;
}

PageSide side_of(const std::vector<PagePair>& pages, bool local, SideShape shape,
                 const std::vector<void*>& regions, std::mt19937_64& random) {
  PageSide side;
  side.regions = regions;
  const std::size_t slots = shape == SideShape::general ? pages.size() : pages.size() + random() % 16;
  side.region_of.assign(slots, 0);
  side.offsets.assign(slots, 0);
  side.lengths.assign(slots, 1);
  std::vector<std::uint32_t> slot_of(slots);
  for (std::size_t s = 0; s < slots; ++s) slot_of[s] = static_cast<std::uint32_t>(s);
  if (shape == SideShape::general_indexed) std::shuffle(slot_of.begin(), slot_of.end(), random);
  slot_of.resize(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    side.region_of[slot_of[i]] = local ? pages[i].local_region : pages[i].remote_region;
    side.offsets[slot_of[i]] = local ? pages[i].local_offset : pages[i].remote_offset;
    side.lengths[slot_of[i]] = pages[i].bytes;
  }
  if (shape == SideShape::general_indexed) side.indices = std::move(slot_of);
  return side;
}

}  // namespace headrace::test
