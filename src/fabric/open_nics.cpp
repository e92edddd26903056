// SPDX-License-Identifier: Apache-2.0
#include "fabric/open_nics.hpp"

#include "agent/core_options.hpp"
#include "base/unix_socket.hpp"
#include "rail/shm/provider.hpp"
#include "rail/tcp/provider.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace::fabric {
namespace {

/// Agents have the same.
Result<std::string> socket_folder() {
  OptionSources sources;
  sources.other_tables = {"*"};
  HEADRACE_TRY(core, Options::resolve(core_options, sources));
  HEADRACE_TRY(configured, core.text("runtime_dir"));
  return runtime_dir(configured, environment_variable("XDG_RUNTIME_DIR"));
}

Result<std::unique_ptr<rail::Provider>> open_nic(const GroupPlan::Nic& nic) {
  if (nic.name != this_host) {
    HEADRACE_TRY(opened, rail::tcp::TcpProvider::open(nic.where));
    return std::unique_ptr<rail::Provider>(std::move(opened));
  }
  HEADRACE_TRY(folder, socket_folder());
  HEADRACE_TRY(opened, rail::shm::ShmProvider::open(folder));
  return std::unique_ptr<rail::Provider>(std::move(opened));
}

}  // namespace

Result<OpenGroup> open_nics(const GroupPlan& plan) {
  OpenGroup group;
  group.shown.device = plan.device;
  group.shown.cpus = plan.cpus;
  std::vector<FabricNic> left_out;
  for (const GroupPlan::Nic& nic : plan.nics) {
    FabricNic shown;
    shown.name = nic.name;
    auto provider = open_nic(nic);
    if (provider) {
      group.shown.nics.push_back(std::move(shown));
      group.providers.push_back(std::move(*provider));
    } else if (plan.by_hand) {
      return std::move(provider.error()).within("open network card " + nic.name);
    } else {
      shown.why = std::move(provider.error().message);
      left_out.push_back(std::move(shown));
    }
  }
  if (group.providers.empty())
    return make_error(Code::not_found, "no network card could be opened; {}: {}", left_out.front().name,
                      left_out.front().why);
  std::ranges::move(left_out, std::back_inserter(group.shown.nics));
  return group;
}

}  // namespace headrace::fabric
