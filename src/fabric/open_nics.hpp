// SPDX-License-Identifier: Apache-2.0
// Opens the NICs of a planned group.
#pragma once

#include "fabric/groups.hpp"
#include "rail/provider.hpp"

#include <memory>
#include <vector>

namespace headrace::fabric {

/// A group whose NICs are open.
struct OpenGroup {
  FabricGroup shown;  ///< its NICs: those of the providers first, in their order
  std::vector<std::unique_ptr<rail::Provider>> providers;
};

///   errors  those of the providers: of a NIC that was named by hand, or if none can be opened
[[nodiscard]] Result<OpenGroup> open_nics(const GroupPlan& plan);

}  // namespace headrace::fabric
