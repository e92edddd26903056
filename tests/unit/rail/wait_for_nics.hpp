// SPDX-License-Identifier: Apache-2.0
// How tests wait for NICs that have descriptors.
#pragma once

#include <poll.h>

#include <vector>

namespace headrace::test {

/// Waits until one of the NICs has something to do, or for a millisecond: engines look at the time.
///   nics  pointers of any kind; null ones are left out
template <class Nics>
void wait_for_nics(const Nics& nics) {
  std::vector<pollfd> waited;
  for (const auto& nic : nics) {
    if (nic == nullptr) continue;
    if (!nic->arm()) return;
    waited.push_back({nic->descriptor(), POLLIN, 0});
  }
  ::poll(waited.data(), waited.size(), 1);
}

}  // namespace headrace::test
