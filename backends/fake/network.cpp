// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/network.hpp"

#include "backends/fake/instance.hpp"
#include "base/random.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::fake {

FakeNetwork::FakeNetwork() : name_(fmt::format("{:016x}", random_u64())) {}

FakeNetwork& FakeNetwork::of_process() {
  static FakeNetwork* const network = new FakeNetwork;
  return *network;
}

std::uint64_t FakeNetwork::join(FakeInstance& instance) {
  const Lock lock(mutex);
  instances.emplace(next_, &instance);
  return next_++;
}

void FakeNetwork::settle() {
  Lock lock(mutex);
  for (;;) {
    const auto due = std::find_if(instances.begin(), instances.end(),
                                  [](const auto& entry) { return entry.second->worker.waits_for_caller(); });
    if (due == instances.end()) return;
    due->second->worker.drain(lock, false);
  }
}

}  // namespace headrace::fake
