// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/remote_regions.hpp"

#include <cstdint>
#include <vector>

namespace headrace::engine {

/// Rising.
inline std::vector<std::uint32_t> ids_of(const RemoteRegions& regions) {
  std::vector<std::uint32_t> ids;
  regions.for_each([&](std::uint32_t id, const RemoteRegion&) { ids.push_back(id); });
  return ids;
}

}  // namespace headrace::engine
