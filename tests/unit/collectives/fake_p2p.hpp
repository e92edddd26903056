// SPDX-License-Identifier: Apache-2.0
// The backend p2p over fake GPUs: CPU references take the place of its kernels.
#pragma once

#include "ranks.hpp"

#include "p2p/backend.hpp"
#include "support/plugin_gpu_source.hpp"

#include <headrace/comm_backend.hpp>

#include <string>
#include <utility>

namespace headrace::test {

/// The backend over the fake GPUs of the plugin, registered once.
inline const std::string& fake_p2p() {
  static const std::string name = [] {
    p2p::Source source{plugin_gpu_source(), gpu_backend};
    source.agent.options["plugin_path"] = gpu_plugin_folder;
    static auto& backend = *new p2p::Backend("p2p_fake", std::move(source));
    const headrace_comm_backend_v1 table = backend.table();
    must(register_comm_backend(&table));
    return std::string(table.name);
  }();
  return name;
}

}  // namespace headrace::test
