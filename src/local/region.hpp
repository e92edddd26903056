// SPDX-License-Identifier: Apache-2.0
// Memory of this agent. The same handle stands on either side of a request.
#pragma once

#include "gpu/registered_memory.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace headrace::local {

class Request;
struct Region;
using Handles = plugin::Handles<Region, plugin::NoLink, Region, Request>;

struct Region {
  std::uint32_t id = 0;
  std::byte* base = nullptr;  ///< of a GPU's memory: its address there, which the CPU does not use
  std::uint64_t length_bytes = 0;
  bool writable = true;
  std::optional<gpu::RegisteredMemory> gpu{};  ///< none: the host's

  [[nodiscard]] bool of_gpu() const { return gpu.has_value(); }
};

}  // namespace headrace::local
