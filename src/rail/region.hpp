// SPDX-License-Identifier: Apache-2.0
// Memory as several NICs know it. A request's page lists have these as their regions.
#pragma once

#include "rail/provider.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail {

/// In the place of a key: this NIC does not reach that kind of memory.
inline constexpr std::string_view no_key = "-";

/// Own memory, registered with every NIC that takes its kind.
struct LocalRegion {
  Memory memory;
  std::vector<MemoryId> ids;      ///< by NIC
  std::vector<std::string> keys;  ///< by NIC, for peers; `no_key`: it is not registered there
};

/// Memory of a peer. Each rail loads its key when it first needs it, and again when it was connected again.
struct RemoteRegion {
  std::vector<std::string> keys;  ///< by the peer's NIC
  struct Loaded {
    std::uint32_t epoch = 0;  ///< of the rail; 0: not loaded
    RemoteId id{};
  };
  std::vector<Loaded> loaded;  ///< by rail
};

}  // namespace headrace::rail
