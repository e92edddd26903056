// SPDX-License-Identifier: Apache-2.0
// Backends, options and telemetry of include/headrace/c/agent.h, as JSON.
#include "agent_handles.hpp"

#include <nlohmann/json.hpp>

namespace headrace::c {
namespace {

using Json = nlohmann::ordered_json;

Json described(const OptionInfo& option) {
  return {{"name", option.name}, {"default", option.default_value}, {"value", option.value},
          {"unit", option.unit}, {"sentence", option.sentence},     {"source", option.source}};
}

Json described(const BackendInfo& backend) {
  Json kinds = Json::array(), options = Json::array();
  for (const MemoryKind kind : backend.kinds) kinds.push_back(kind_name(kind));
  for (const OptionInfo& option : backend.options) options.push_back(described(option));
  return {
      {"name", backend.name},       {"version", backend.version}, {"path", backend.path},
      {"loaded", backend.loaded},   {"refusal", backend.refusal}, {"kinds", kinds},
      {"local", backend.local},     {"remote", backend.remote},   {"notifications", backend.notifications},
      {"mapping", backend.mapping}, {"query", backend.query},     {"ports", backend.ports},
      {"options", options}};
}

/// Values of options come from the environment, so not all of them are UTF-8.
template <class Row>
void give_list(headrace_bytes** out, const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const Row& row : rows) all.push_back(described(row));
  give(out, all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_backends(const headrace_agent* agent, headrace_bytes** json,
                                     headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(json, "json"));
    give_list(json, agent->agent.backends());
    return {};
  });
}

std::int32_t headrace_agent_create_backend(headrace_agent* agent, const char* name,
                                           const char* const* options, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(name, "name"));
    auto values = pairs_in(options);
    if (!values) return std::move(values).error();
    return agent->agent.create_backend(name, *values);
  });
}

std::int32_t headrace_agent_telemetry(const headrace_agent* agent, headrace_bytes** json,
                                      headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(json, "json"));
    give(json, agent->agent.telemetry().json());
    return {};
  });
}

std::int32_t headrace_list_backends(const char* const* options, headrace_bytes** json,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(json, "json"));
    auto values = pairs_in(options);
    if (!values) return std::move(values).error();
    auto found = headrace::list_backends(*values);
    if (!found) return std::move(found).error();
    give_list(json, *found);
    return {};
  });
}

std::int32_t headrace_list_options(const char* const* options, headrace_bytes** json,
                                   headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(json, "json"));
    auto values = pairs_in(options);
    if (!values) return std::move(values).error();
    auto found = headrace::list_options(*values);
    if (!found) return std::move(found).error();
    give_list(json, *found);
    return {};
  });
}
