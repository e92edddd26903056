// SPDX-License-Identifier: Apache-2.0
#include "local/instance.hpp"

#include "base/affinity.hpp"
#include "local/copy_request.hpp"

#include <algorithm>

namespace headrace::local {
namespace {

/// More move memory no faster (bench/notes/shm.md).
constexpr std::uint32_t most_helpers = 15;

std::uint32_t helpers_for(const Settings& settings, std::uint32_t pool_threads) {
  const std::uint32_t wanted =
      settings.threads != 0 ? settings.threads : std::min(usable_cores() - 1, most_helpers);
  return std::max(std::min(wanted, pool_threads), 1U);
}

}  // namespace

Instance::Instance(plugin::Host its_host, const Settings& its_settings, gpu::GpuSource source,
                   bool gpus_are_there)
    : host(its_host),
      settings(its_settings),
      helpers(helpers_for(its_settings, its_host.pool_threads())),
      copiers(std::min(helpers + 1, usable_cores())),
      places(its_settings.numa ? CopyPlaces::read() : nullptr),
      gpus(std::move(source), its_settings.gpu.moves),
      gpus_in_sight(gpus_are_there),
      posts([its_host] { its_host.wake(); }),
      staging(its_host, its_settings.gpu.staging_bytes) {}

Instance::~Instance() {
  tasks.wait_for_none();
  for (CopyRequest* const request : stranded_) request->unref();
}

void Instance::completed(std::uint64_t token, const Result<void>& outcome) const {
  if (outcome) {
    host.completed(token, {});
  } else {
    host.completed(token, {outcome.code(), 0, outcome.error().page}, outcome.error().message);
  }
}

void Instance::strand(CopyRequest& request) {
  {
    const std::lock_guard lock(stranded_mutex_);
    stranded_.push_back(&request);
    has_stranded_.store(true, std::memory_order_release);
  }
  host.wake();
}

std::uint32_t Instance::rescue_stranded() {
  if (!has_stranded_.load(std::memory_order_acquire)) return 0;
  std::vector<CopyRequest*> stranded;
  {
    const std::lock_guard lock(stranded_mutex_);
    stranded.swap(stranded_);
    has_stranded_.store(false, std::memory_order_release);
  }
  for (CopyRequest* const request : stranded) {
    if (request->rescue()) {
      strand(*request);
    } else {
      request->unref();
    }
  }
  return static_cast<std::uint32_t>(stranded.size());
}

}  // namespace headrace::local
