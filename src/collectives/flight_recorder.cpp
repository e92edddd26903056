// SPDX-License-Identifier: Apache-2.0
#include <headrace/flight_recorder.hpp>

#include "base/errors.hpp"
#include "collectives/call_ring.hpp"
#include "collectives/pickle.hpp"
#include "collectives/trace_layout.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

namespace headrace {
namespace {

/// Batches and coalesced calls are recorded call by call. One-sided operations are no others' business, and
/// fr_trace compares what all ranks call.
bool is_recorded(CommOperation operation) {
  return operation != CommOperation::batch && operation != CommOperation::coalesced &&
         !is_one_sided(operation);
}

using collectives::CallRing;

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Other programs see the whole file, or the former one.
Result<void> replace_file(const std::string& path, const std::string& bytes) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return os_error(errno, "write {}", fresh);
  if (std::rename(fresh.c_str(), path.c_str()) != 0) return os_error(errno, "rename {} to {}", fresh, path);
  return {};
}

}  // namespace

FlightRecorder::FlightRecorder(std::size_t entries) : ring_(std::make_shared<CallRing>(entries)) {}

CommHook FlightRecorder::attach(Comm& comm) {
  auto recorded = ring_->add(comm);
  CommHooks hooks;
  hooks.scheduled = [ring = ring_, recorded](const CommCall& call) {
    if (is_recorded(call.operation)) ring->scheduled(recorded, call);
  };
  hooks.started = [ring = ring_, recorded](const CommCallId& call) {
    if (is_recorded(call.operation)) ring->started(*recorded, call);
  };
  hooks.completed = [ring = ring_, recorded](const CommCallId& call, const Error& error) {
    if (is_recorded(call.operation)) ring->completed(*recorded, call, error);
  };
  hooks.after = [ring = ring_, recorded](const CommCall& call, const Result<Work>& result) {
    if (call.operation != CommOperation::recv || call.peer != any_source || !result) return;
    result->on_end([ring, recorded, number = call.number, work = *result] {
      if (work.source() >= 0) ring->received(*recorded, number, work.source());
    });
  };
  hooks.aborted = [ring = ring_, recorded](const Error& cause) { ring->ended(*recorded, cause); };
  return comm.add_hooks(std::move(hooks));
}

std::string FlightRecorder::dump() const {
  return json_text(collectives::trace_of(ring_->snapshot(), ring_->rank()));
}

std::string FlightRecorder::dump_pickle() const {
  // Through text, so that every string is UTF-8.
  return collectives::pickle_of(nlohmann::ordered_json::parse(dump()));
}

Result<std::string> FlightRecorder::write(const std::string& prefix) const {
  const auto rank = ring_->rank();
  if (!rank)
    return make_error(Code::invalid_argument,
                      "the flight recorder has no communicator, so there is no rank for the name {}<rank>: "
                      "attach it to one first",
                      prefix);
  std::string path = prefix + std::to_string(*rank);
  HEADRACE_TRY_VOID(replace_file(path, dump_pickle()));
  return path;
}

}  // namespace headrace
