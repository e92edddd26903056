// SPDX-License-Identifier: Apache-2.0
// The class Agent has a file for each section of <headrace/agent.hpp>. Here is what these files share.
#pragma once

#include <headrace/agent.hpp>

#include "bindings/python/agent_handle.hpp"
#include "bindings/python/binding.hpp"

#include <optional>
#include <vector>

namespace headrace::python {

void bind_agent_values(nb::module_& module);  ///< ImportReport, PeerInfo, OptionInfo, BackendInfo
void bind_notification_watch(nb::module_& module);
void bind_agent_memory(nb::class_<PyAgent>& agent);
void bind_agent_metadata(nb::class_<PyAgent>& agent);
void bind_agent_requests(nb::class_<PyAgent>& agent);
void bind_agent_notifications(nb::class_<PyAgent>& agent);
void bind_agent_counters(nb::class_<PyAgent>& agent);

/// How long a call waits if its caller says nothing.
inline constexpr double ten_seconds = 10;

template <class Value>
[[nodiscard]] nb::list to_list(std::vector<Value> values) {
  nb::list list;
  for (Value& value : values) list.append(nb::cast(std::move(value)));
  return list;
}

/// What a post adds to; none without `immediate`.
[[nodiscard]] inline std::optional<Immediate> to_immediate(const std::optional<std::uint32_t>& immediate,
                                                           std::uint32_t scope) {
  return immediate ? std::optional(Immediate{*immediate, scope}) : std::nullopt;
}

/// Raises invalid_argument unless the object can be called or is None.
void check_callback(const nb::object& callback);

}  // namespace headrace::python
