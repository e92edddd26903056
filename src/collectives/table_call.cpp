// SPDX-License-Identifier: Apache-2.0
#include "collectives/table_call.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <type_traits>

namespace headrace::collectives {
namespace {

/// Inputs lose their const: the table's rule says that a backend does not write to them.
template <class Element>
std::vector<headrace_comm_elements_v1> elements_of(std::span<const Element> list) {
  std::vector<headrace_comm_elements_v1> elements;
  elements.reserve(list.size());
  for (const Element& one : list)
    elements.push_back({const_cast<void*>(static_cast<const void*>(one.data)), one.count,
                        static_cast<std::int32_t>(one.dtype)});
  return elements;
}

}  // namespace

TableSettings::TableSettings(const std::map<std::string, std::string>* settings) {
  if (settings == nullptr) return;
  settings_.reserve(settings->size());
  for (const auto& [name, value] : *settings) settings_.push_back({name.c_str(), value.c_str()});
}

std::int64_t table_timeout(Timeout timeout) {
  return timeout ? std::max<std::int64_t>(timeout->count(), 0) : -1;
}

TableCall::TableCall(const CommCall& call, Timeout timeout)
    : inputs_(elements_of(call.inputs)),
      outputs_(elements_of(call.outputs)),
      input_splits_(call.input_splits.begin(), call.input_splits.end()),
      output_splits_(call.output_splits.begin(), call.output_splits.end()),
      hints_(call.hints) {
  call_.struct_size = sizeof call_;
  call_.operation = static_cast<std::int32_t>(call.operation);
  call_.async = call.async ? 1 : 0;
  call_.number = call.number;
  call_.inputs = inputs_.data();
  call_.input_count = inputs_.size();
  call_.outputs = outputs_.data();
  call_.output_count = outputs_.size();
  call_.input_splits = input_splits_.data();
  call_.output_splits = output_splits_.data();
  call_.split_count = input_splits_.size();
  call_.reduction = call.op.kind;
  call_.factor = call.op.factor;
  call_.peer = call.peer;
  call_.tag = call.tag;
  call_.timeout_ns = table_timeout(timeout);
  call_.hints = hints_.data();
  call_.hint_count = static_cast<std::uint32_t>(hints_.size());
  call_.stream = call.stream;
}

Error table_error(std::string_view backend, std::int32_t code, std::string_view message) {
  const bool known = code > HEADRACE_WOULD_BLOCK && code <= HEADRACE_INTERNAL;
  const Code mine = known ? static_cast<Code>(code) : Code::backend_failed;
  if (!message.empty()) return make_error(mine, "backend {}: {}", backend, message);
  if (known) return make_error(mine, "backend {} gave no reason but {}", backend, code_name(mine));
  return make_error(mine, "backend {} returned {}, which is no code of headrace_code_v1", backend, code);
}

Error TableText::error(std::string_view backend, std::int32_t code) const {
  return table_error(backend, code, view());
}

}  // namespace headrace::collectives
