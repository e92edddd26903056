// SPDX-License-Identifier: Apache-2.0
// The server of `headrace bench fabric`: memory that clients write and read, and a counter of what arrives.
#pragma once

#include "cli/bench/fabric_side.hpp"

namespace headrace::cli {

struct FabricServerOptions {
  FabricSideOptions side;
  std::string listen;  ///< "host:port"; empty: a free port at the address of the first network card
  bool json = false;
};

/// Prints its address, and serves one client after the other until SIGINT or SIGTERM.
[[nodiscard]] Result<void> serve_fabric_bench(const FabricServerOptions& options);

}  // namespace headrace::cli
