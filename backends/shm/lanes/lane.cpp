// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/lane.hpp"

#include "base/errors.hpp"

#include <fcntl.h>

#include <new>

namespace headrace::shm {
namespace {

using host_link::Mapping;

constexpr std::uint32_t lane_magic = 0x4c535248;  // "HRSL"
constexpr std::uint32_t lane_version = 1;
constexpr std::uint64_t head_bytes = 64 * 1024;  // so that the ring begins on a page, however large pages are
constexpr std::uint64_t file_bytes = head_bytes + lane_ring_bytes;
static_assert(4096 + lane_runs * sizeof(LaneRun) <= head_bytes && sizeof(LaneWords) <= 4096);

}  // namespace

Result<std::unique_ptr<LaneMemory>> LaneMemory::map(const UniqueFd& file) {
  HEADRACE_TRY(head, Mapping::of_file(file.get(), 0, head_bytes, Mapping::Access::read_write));
  HEADRACE_TRY(ring, Mapping::of_file_twice(file.get(), head_bytes, lane_ring_bytes));
  return std::unique_ptr<LaneMemory>(new LaneMemory(std::move(head), std::move(ring)));
}

Result<std::unique_ptr<LaneMemory>> LaneMemory::create(UniqueFd& file) {
  HEADRACE_TRY(made, host_link::create_memory_file("headrace-lane", file_bytes));
  HEADRACE_TRY_VOID(host_link::seal_memory_file(made.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  HEADRACE_TRY(lane, map(made));
  file = std::move(made);
  new (&lane->words()) LaneWords{};
  lane->words().magic = lane_magic;
  lane->words().version = lane_version;
  return lane;
}

Result<std::unique_ptr<LaneMemory>> LaneMemory::adopt(const UniqueFd& file) {
  HEADRACE_TRY(found, host_link::inspect_memory_file(file.get()));
  if (found.size_bytes != file_bytes || found.page_bytes > head_bytes || !found.writable) {
    return make_error(Code::corrupt, "a lane's memory file has {} bytes in pages of {}", found.size_bytes,
                      found.page_bytes);
  }
  HEADRACE_TRY(lane, map(file));
  if (lane->words().magic != lane_magic || lane->words().version != lane_version) {
    return make_error(Code::corrupt, "a lane's memory file begins with {:#x}, version {}",
                      lane->words().magic, lane->words().version);
  }
  return lane;
}

}  // namespace headrace::shm
