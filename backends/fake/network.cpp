// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/network.hpp"

#include "base/random.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace headrace::fake {

Region::~Region() {
  if (memory_fd >= 0) ::close(memory_fd);
}

FakeNetwork::FakeNetwork() : name_(fmt::format("{:016x}", random_u64())) {}

}  // namespace headrace::fake
