// SPDX-License-Identifier: Apache-2.0
#include "fabric/open_nics.hpp"

#include "agent/core_options.hpp"
#include "base/unix_socket.hpp"
#include "metadata/metadata_socket.hpp"
#include "rail/shm/provider.hpp"
#include "rail/tcp/address.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace::fabric {
namespace {

Result<rail::tcp::SharedSecret> for_nics(const Secret& secret) {
  if (secret.token.empty()) return rail::tcp::SharedSecret{};
  HEADRACE_TRY(hmac, metadata::load_hmac());
  return rail::tcp::SharedSecret{secret.token, std::move(hmac)};
}

/// As an agent looks at its data ports.
Result<void> check_port(const GroupPlan::Nic& nic, const Secret& secret) {
  const auto local = rail::tcp::find_local_address(nic.where);
  if (!local) return {};  // opening it says so
  return secret.check_port("network card " + nic.name + " of a fabric", local->at.text(),
                           "take \"this host\" and loopback alone as its network cards");
}

Result<std::unique_ptr<rail::Provider>> open_nic(const GroupPlan::Nic& nic, const NicSettings& settings) {
  if (nic.name != this_host) {
    HEADRACE_TRY(opened, rail::tcp::TcpProvider::open(nic.where, {}, settings.shared));
    return std::unique_ptr<rail::Provider>(std::move(opened));
  }
  HEADRACE_TRY(folder, runtime_dir(settings.runtime_dir, environment_variable("XDG_RUNTIME_DIR")));
  HEADRACE_TRY(opened, rail::shm::ShmProvider::open(folder));
  return std::unique_ptr<rail::Provider>(std::move(opened));
}

}  // namespace

Result<NicSettings> NicSettings::read(const std::map<std::string, std::string>& given) {
  OptionSources sources;
  sources.given = given;
  sources.other_tables = {"*"};
  HEADRACE_TRY(core, Options::resolve(core_options, sources));
  NicSettings settings;
  HEADRACE_TRY(secret, Secret::read(core));
  settings.secret = std::move(secret);
  HEADRACE_TRY(proofs, for_nics(settings.secret));
  settings.shared = std::move(proofs);
  HEADRACE_TRY(folder, core.text("runtime_dir"));
  settings.runtime_dir = std::move(folder);
  return settings;
}

Result<OpenGroup> open_nics(const GroupPlan& plan, const NicSettings& settings) {
  for (const GroupPlan::Nic& nic : plan.nics)
    if (nic.name != this_host) HEADRACE_TRY_VOID(check_port(nic, settings.secret));
  OpenGroup group;
  group.shown.device = plan.device;
  group.shown.cpus = plan.cpus;
  std::vector<FabricNic> left_out;
  for (const GroupPlan::Nic& nic : plan.nics) {
    FabricNic shown;
    shown.name = nic.name;
    auto provider = open_nic(nic, settings);
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
