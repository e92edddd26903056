// SPDX-License-Identifier: Apache-2.0
// Agents of include/headrace/c/agent.h.
#include "agent_handles.hpp"

namespace headrace::c {
namespace {

Result<AgentOptions> agent_options_of(const headrace_agent_options* given) {
  AgentOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.backends = names_in(given->backends);
  options.listen = text_or_empty(given->listen);
  options.store = text_or_empty(given->store);
  auto values = pairs_in(given->options);
  if (!values) return std::move(values).error();
  options.options = std::move(*values);
  return options;
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_open(const char* name, const headrace_agent_options* options,
                                 headrace_agent** agent, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(name, "name"));
    HEADRACE_C_TRY(given(agent, "agent"));
    auto wanted = agent_options_of(options);
    if (!wanted) return std::move(wanted).error();
    auto opened = headrace::Agent::open(name, std::move(*wanted));
    if (!opened) return std::move(opened).error();
    std::string address = opened->listen_address();
    *agent = new headrace_agent{std::move(*opened), std::move(address)};
    return {};
  });
}

void headrace_agent_close(headrace_agent* agent) { delete agent; }
void headrace_agent_shut(headrace_agent* agent) {
  if (agent != nullptr) agent->agent.close();
}

const char* headrace_agent_name(const headrace_agent* agent) {
  return agent == nullptr ? "" : agent->agent.name().c_str();
}
std::uint64_t headrace_agent_incarnation(const headrace_agent* agent) {
  return agent == nullptr ? 0 : agent->agent.incarnation();
}
const char* headrace_agent_listen_address(const headrace_agent* agent) {
  return agent == nullptr ? "" : agent->listen_address.c_str();
}
