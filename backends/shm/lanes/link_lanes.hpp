// SPDX-License-Identifier: Apache-2.0
// The lanes through which one link reads. Its requests take turns at them.
#pragma once

#include "backends/shm/lanes/lane_reader.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::shm {

/// A lane that one request reads through. The owner knows it by its `id`.
struct ReaderLane {
  std::uint32_t id = 0;
  bool announced = false;  ///< its memory was sent to the owner
  UniqueFd file;           ///< until then
  std::unique_ptr<LaneReader> reader;
};

///   threads  any
class LinkLanes {
 public:
  /// False for a while after the owner has not served a lane.
  [[nodiscard]] bool open() const;
  /// A free lane, or a new one; null: there is none now.
  [[nodiscard]] std::unique_ptr<ReaderLane> take();
  /// Returns the lane if it must be dropped and the owner told. `not_its_fault`: the link may go on with
  /// other lanes.
  [[nodiscard]] std::unique_ptr<ReaderLane> give_back(std::unique_ptr<ReaderLane> lane, bool not_its_fault);
  void clear();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ReaderLane>> free_;
  std::uint32_t next_id_ = 1;
  std::atomic<std::uint64_t> closed_until_ns_{0};
};

}  // namespace headrace::shm
