// SPDX-License-Identifier: Apache-2.0
#include "agent/fabric_options.hpp"

#include "agent/agent_impl.hpp"
#include "agent/secret.hpp"

namespace headrace {

Result<std::map<std::string, std::string>> FabricOptionsOf::agent(const Agent& agent) {
  const Options& core = agent.impl_->set->core();
  HEADRACE_TRY(secret, Secret::read(core));
  HEADRACE_TRY(folder, core.text("runtime_dir"));
  return std::map<std::string, std::string>{{"auth_token", secret.token},
                                            {"auth_token_file", ""},
                                            {"auth", secret.required ? "required" : "optional"},
                                            {"runtime_dir", folder}};
}

}  // namespace headrace
