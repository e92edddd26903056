// SPDX-License-Identifier: Apache-2.0
// Metadata and peers of include/headrace/c/agent.h.
#include "agent_handles.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace headrace::c {

Result<ExportOptions> export_options_of(const headrace_export_options* given) {
  ExportOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  auto regions = array_in(given->regions, given->region_count, "regions");
  if (!regions) return std::move(regions).error();
  for (const std::uint32_t id : *regions) options.regions.push_back({id});
  options.regions_none = given->no_regions != 0;
  options.connection_info = given->no_connection_info == 0;
  options.since_version = given->since_version;
  return options;
}

namespace {

Result<void> tell(headrace_import_report* report, Result<ImportReport> told) {
  if (!told) return std::move(told).error();
  if (report == nullptr) return {};
  report->incarnation = told->incarnation;
  report->version = told->version;
  report->regions = told->regions;
  report->restarted = told->restarted ? 1 : 0;
  report->reserved = 0;
  // An agent's name has at most 255 bytes.
  const std::size_t length = std::min(told->peer.size(), sizeof report->peer - 1);
  std::memcpy(report->peer, told->peer.data(), length);
  report->peer[length] = '\0';
  if (report->struct_size >= sizeof *report) report->left_out = told->left_out;
  return {};
}

nlohmann::ordered_json described(const PeerInfo& peer) {
  return {{"name", peer.name},           {"incarnation", peer.incarnation},
          {"version", peer.version},     {"regions", peer.regions},
          {"connected", peer.connected}, {"lost", peer.lost},
          {"backends", peer.backends},   {"detail", peer.detail}};
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_export_metadata(const headrace_agent* agent,
                                            const headrace_export_options* options, headrace_bytes** metadata,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(metadata, "metadata"));
    auto wanted = export_options_of(options);
    if (!wanted) return std::move(wanted).error();
    return make_handle(metadata, agent->agent.export_metadata(*wanted));
  });
}

std::uint64_t headrace_agent_metadata_version(const headrace_agent* agent) {
  return agent == nullptr ? 0 : agent->agent.metadata_version();
}

std::int32_t headrace_agent_import_metadata(headrace_agent* agent, const void* bytes, std::uint64_t size,
                                            headrace_import_report* report, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(bytes, "bytes"));
    HEADRACE_C_TRY(whole_or_null(report, "report"));
    return tell(report, agent->agent.import_metadata({static_cast<const char*>(bytes), size}));
  });
}

std::int32_t headrace_agent_fetch_metadata(headrace_agent* agent, const char* address,
                                           std::int64_t timeout_ns, headrace_import_report* report,
                                           headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(address, "address"));
    HEADRACE_C_TRY(whole_or_null(report, "report"));
    return tell(report, agent->agent.fetch_metadata(address, timeout_of(timeout_ns)));
  });
}

std::int32_t headrace_agent_send_metadata(headrace_agent* agent, const char* address,
                                          const headrace_export_options* options, std::int64_t timeout_ns,
                                          headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(address, "address"));
    auto wanted = export_options_of(options);
    if (!wanted) return std::move(wanted).error();
    return agent->agent.send_metadata(address, *wanted, timeout_of(timeout_ns));
  });
}

std::int32_t headrace_agent_publish(headrace_agent* agent, const headrace_export_options* options,
                                    const char* label, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    auto wanted = export_options_of(options);
    if (!wanted) return std::move(wanted).error();
    return agent->agent.publish(*wanted, text_or_empty(label));
  });
}

std::int32_t headrace_agent_unpublish(headrace_agent* agent, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    return agent->agent.unpublish();
  });
}

std::int32_t headrace_agent_find(headrace_agent* agent, const char* peer, const char* label,
                                 std::int64_t timeout_ns, headrace_import_report* report,
                                 headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    HEADRACE_C_TRY(whole_or_null(report, "report"));
    return tell(report, agent->agent.find(peer, timeout_of(timeout_ns), text_or_empty(label)));
  });
}

std::int32_t headrace_agent_list_namespace(headrace_agent* agent, std::int64_t timeout_ns,
                                           headrace_bytes** json, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(json, "json"));
    auto names = agent->agent.list_namespace(timeout_of(timeout_ns));
    if (!names) return std::move(names).error();
    give(json, nlohmann::ordered_json(*names).dump());
    return {};
  });
}

std::int32_t headrace_agent_watch_namespace(headrace_agent* agent, headrace_peer_function function,
                                            headrace_callback callback, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const auto context = context_of(callback.context, callback.drop);
    HEADRACE_C_TRY(given(agent, "agent"));
    if (function == nullptr) return agent->agent.watch_namespace({});
    return agent->agent.watch_namespace([function, context](const headrace::PeerEvent& event) {
      function(context.get(), static_cast<std::int32_t>(event.kind), event.peer.c_str());
    });
  });
}

std::int32_t headrace_agent_peers(const headrace_agent* agent, headrace_bytes** json,
                                  headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(json, "json"));
    auto all = nlohmann::ordered_json::array();
    for (const headrace::PeerInfo& peer : agent->agent.peers()) all.push_back(described(peer));
    give(json, all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  });
}

std::int32_t headrace_agent_connect(headrace_agent* agent, const char* peer, const char* const* backends,
                                    std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    return agent->agent.connect(peer, timeout_of(timeout_ns), names_in(backends));
  });
}

std::int32_t headrace_agent_forget(headrace_agent* agent, const char* peer, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    return agent->agent.forget(peer);
  });
}
