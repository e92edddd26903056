// SPDX-License-Identifier: Apache-2.0
// Communicators of include/headrace/c/comm.h.
#include "comm_handles.hpp"

#include <headrace/comm_backend.hpp>
#include <nlohmann/json.hpp>

namespace headrace::c {
namespace {

Result<CommOptions> comm_options_of(const headrace_comm_options* given) {
  CommOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.rank = given->rank;
  options.size = given->size;
  if (given->name != nullptr) options.name = given->name;
  options.meeting = text_or_empty(given->meeting);
  auto store = store_of(given->store);
  if (!store) return std::move(store).error();
  options.store = std::move(*store);
  options.meeting_timeout = timeout_of(given->meeting_timeout_ns);
  options.timeout = timeout_of(given->timeout_ns);
  options.abort_on_error = given->abort_on_error != 0;
  options.enable_reconfigure = given->enable_reconfigure != 0;
  if (given->backend != nullptr) options.backend = given->backend;
  if (given->device != nullptr) options.device = given->device;
  auto hints = pairs_in(given->hints);
  if (!hints) return std::move(hints).error();
  options.hints = std::move(*hints);
  return options;
}

nlohmann::ordered_json described(Timeout timeout) {
  return timeout ? nlohmann::ordered_json(timeout->count()) : nlohmann::ordered_json();
}

nlohmann::ordered_json described(const CommOptions& options) {
  return {{"rank", options.rank},
          {"size", options.size},
          {"name", options.name},
          {"meeting", options.meeting},
          {"meeting_timeout_ns", described(options.meeting_timeout)},
          {"timeout_ns", described(options.timeout)},
          {"abort_on_error", options.abort_on_error},
          {"backend", options.backend},
          {"device", options.device},
          {"hints", nlohmann::ordered_json(options.hints)}};
}

nlohmann::ordered_json described(const CommHint& hint) {
  return {
      {"name", hint.name}, {"default", hint.default_value}, {"unit", hint.unit}, {"sentence", hint.sentence}};
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_comm_options_from_environment(headrace_comm_options* options, headrace_bytes** place,
                                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(options, "options"));
    HEADRACE_C_TRY(whole(options, "options"));
    HEADRACE_C_TRY(given(place, "place"));
    auto launched = headrace::CommOptions::from_environment();
    if (!launched) return std::move(launched).error();
    options->rank = launched->rank;
    options->size = launched->size;
    const bool is_there = !launched->meeting.empty();
    give(place, std::move(launched->meeting));
    options->meeting = is_there ? static_cast<const char*>(headrace_bytes_data(*place)) : nullptr;
    return {};
  });
}

std::int32_t headrace_comm_open(const headrace_comm_options* options, headrace_comm** comm,
                                headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    auto wanted = comm_options_of(options);
    if (!wanted) return std::move(wanted).error();
    auto opened = headrace::Comm::open(*wanted);
    if (!opened) return std::move(opened).error();
    *comm = new headrace_comm(std::move(*opened));
    return {};
  });
}

void headrace_comm_close(headrace_comm* comm) { delete comm; }

std::int32_t headrace_comm_rank(const headrace_comm* comm) {
  return comm == nullptr ? -1 : comm->comm.rank();
}
std::int32_t headrace_comm_size(const headrace_comm* comm) { return comm == nullptr ? 0 : comm->comm.size(); }
const std::int32_t* headrace_comm_ranks(const headrace_comm* comm) {
  return comm == nullptr ? nullptr : comm->ranks.data();
}
const char* headrace_comm_name(const headrace_comm* comm) {
  return comm == nullptr ? "" : comm->name.c_str();
}
const char* headrace_comm_backend(const headrace_comm* comm) {
  return comm == nullptr ? "" : comm->comm.backend().data();
}
const char* headrace_comm_backend_version(const headrace_comm* comm) {
  return comm == nullptr ? "" : comm->comm.backend_version().data();
}

std::int32_t headrace_comm_get_options(const headrace_comm* comm, headrace_bytes** json,
                                       headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(json, "json"));
    give(json, described(comm->comm.options())
                   .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  });
}

std::int32_t headrace_register_comm_backend(const headrace_comm_backend_v1* table, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(table, "table"));
    return headrace::register_comm_backend(table);
  });
}

std::int32_t headrace_list_comm_backends(headrace_bytes** json, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(json, "json"));
    give(json, nlohmann::ordered_json(headrace::list_comm_backends()).dump());
    return {};
  });
}

std::int32_t headrace_list_comm_hints(headrace_bytes** json, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(json, "json"));
    auto all = nlohmann::ordered_json::array();
    for (const headrace::CommHint& hint : headrace::list_comm_hints()) all.push_back(described(hint));
    give(json, all.dump());
    return {};
  });
}

std::int32_t headrace_comm_set_timeout(headrace_comm* comm, std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    comm->comm.set_timeout(timeout_of(timeout_ns));
    return {};
  });
}

std::int32_t headrace_comm_set_hints(headrace_comm* comm, const char* const* hints, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(hints, "hints"));
    auto values = pairs_in(hints);
    if (!values) return std::move(values).error();
    return comm->comm.set_hints(*values);
  });
}

std::int32_t headrace_comm_tensor_register(headrace_comm* comm, const headrace_elements* tensor,
                                           headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(tensor, "tensor"));
    return comm->comm.tensor_register(output_of(*tensor));
  });
}

std::int32_t headrace_comm_tensor_deregister(headrace_comm* comm, const headrace_elements* tensor,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(tensor, "tensor"));
    return comm->comm.tensor_deregister(output_of(*tensor));
  });
}

std::int32_t headrace_comm_suspend(headrace_comm* comm, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.suspend();
  });
}

std::int32_t headrace_comm_resume(headrace_comm* comm, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.resume();
  });
}

std::int32_t headrace_comm_is_suspended(const headrace_comm* comm) {
  return comm != nullptr && comm->comm.is_suspended() ? 1 : 0;
}

void headrace_comm_abort(headrace_comm* comm, const char* reason) {
  (void)guarded(nullptr, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    reason == nullptr ? comm->comm.abort() : comm->comm.abort(reason);
    return {};
  });
}

std::int32_t headrace_comm_is_aborted(const headrace_comm* comm) {
  return comm != nullptr && comm->comm.is_aborted() ? 1 : 0;
}

std::int32_t headrace_comm_finalize(headrace_comm* comm, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.finalize();
  });
}
