// SPDX-License-Identifier: Apache-2.0
// The handles of the backend. Memory of this agent is the same handle on either side of a request.
#pragma once

#include "gpu/region.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstddef>
#include <cstdint>

namespace headrace::local {

using gpu::Region;

class Request;
using Handles = plugin::Handles<Region, plugin::NoLink, Region, Request>;

/// Of the host's memory.
[[nodiscard]] inline std::byte* bytes_of(const Region& region) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(region.address()));
}

}  // namespace headrace::local
