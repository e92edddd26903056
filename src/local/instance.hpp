// SPDX-License-Identifier: Apache-2.0
// What the requests of one instance share: the settings, the GPUs, and the work that lies with the pool.
#pragma once

#include "base/task_gate.hpp"
#include "gpu/gpus.hpp"
#include "gpu/posts.hpp"
#include "gpu/staging.hpp"
#include "local/region.hpp"
#include "local/settings.hpp"
#include "memory/near_memory.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::local {

class CopyRequest;

class Instance {
 public:
  Instance(plugin::Host its_host, const Settings& its_settings, gpu::GpuSource source, bool gpus_are_there);
  /// Waits for the tasks of the pool.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const plugin::Host host;
  const Settings settings;
  const std::uint32_t helpers;  ///< pool threads for one request
  const std::uint32_t copiers;  ///< threads that copy for one request at a time, a waiter included
  const std::unique_ptr<CopyPlaces> places;  ///< for pool threads; null: they stay where they are
  gpu::Gpus gpus;
  const bool gpus_in_sight;
  gpu::Posts posts;  ///< that GPUs work on
  gpu::Staging staging;
  TaskGate tasks;

  /// Ends a post. After this its request may be gone.
  void completed(std::uint64_t token, const Result<void>& outcome) const;

  /// Keeps a request that the pool's queue had no room for, with the reference that the caller gives.
  void strand(CopyRequest& request);
  /// Finds stranded requests a thread of the pool, or does a chunk of each here. Returns how many there were.
  std::uint32_t rescue_stranded();

 private:
  std::mutex stranded_mutex_;
  std::vector<CopyRequest*> stranded_;
  std::atomic<bool> has_stranded_{false};
};

}  // namespace headrace::local
