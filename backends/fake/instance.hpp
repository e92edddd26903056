// SPDX-License-Identifier: Apache-2.0
// What the parts of one instance share, and what its peers see of it.
#pragma once

#include "backends/fake/handles.hpp"
#include "backends/fake/regions.hpp"
#include "backends/fake/worker.hpp"

namespace headrace::fake {

struct FakeInstance {
  const plugin::Host host;
  FakeNetwork& network;
  FaultScript& script;
  Worker worker;
  Regions regions;
  HandleTable<LinkEnd> links;  ///< guarded by the network's lock
};

}  // namespace headrace::fake
