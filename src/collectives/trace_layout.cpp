// SPDX-License-Identifier: Apache-2.0
#include "collectives/trace_layout.hpp"

#include <headrace/version.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::collectives {
namespace {

using Json = nlohmann::ordered_json;

/// Ranks that fr_trace compares, under a name.
struct Group {
  std::string name;
  std::vector<int> ranks;
};

/// fr_trace knows the operations of torch and torchcomms alone, of a library that it knows: gloo is the one
/// for host memory. Sizes that differ between ranks are no error to it in all_to_all.
std::string profiling_name(CommOperation operation) {
  switch (operation) {
    case CommOperation::open:
    case CommOperation::monitored_barrier:
    case CommOperation::tensor_register:
    case CommOperation::tensor_deregister:
    case CommOperation::suspend:
    case CommOperation::resume:
      return "gloo:barrier";
    case CommOperation::reduce_scatter_quantized:
      return "gloo:reduce_scatter";
    case CommOperation::gather_single:
      return "gloo:gather";
    case CommOperation::all_to_all_v_single:
    case CommOperation::device_all_to_all_v_single:
      return "gloo:all_to_all";
    default:
      return fmt::format("gloo:{}", comm_operation_name(operation));
  }
}

/// The names that torch gives element types.
std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "Double";
    case DType::float32:
      return "Float";
    case DType::float16:
      return "Half";
    case DType::bfloat16:
      return "BFloat16";
    case DType::float8_e4m3fn:
      return "Float8_e4m3fn";
    case DType::float8_e5m2:
      return "Float8_e5m2";
    case DType::int8:
      return "Char";
    case DType::int16:
      return "Short";
    case DType::int32:
      return "Int";
    case DType::int64:
      return "Long";
    case DType::uint8:
      return "Byte";
    case DType::uint16:
      return "UInt16";
    case DType::uint32:
      return "UInt32";
    case DType::uint64:
      return "UInt64";
    case DType::boolean:
      return "Bool";
    case DType::complex64:
      return "ComplexFloat";
    case DType::complex128:
      return "ComplexDouble";
    default:
      return dtype_name(dtype);
  }
}

std::string_view state_name(CallRecord::State state) {
  switch (state) {
    case CallRecord::State::scheduled:
      return "scheduled";
    case CallRecord::State::started:
      return "started";
    case CallRecord::State::completed:
      break;
  }
  return "completed";
}

/// A list of tensors counts as one, as fr_trace expects of all_gather and reduce_scatter. What may differ
/// between ranks has no size, else fr_trace takes the difference for an error.
Json sizes(const std::optional<RecordedElements>& elements, bool may_differ) {
  if (!elements) return Json::array();
  return Json::array({may_differ ? Json::array() : Json::array({elements->count})});
}
Json dtypes(const std::optional<RecordedElements>& elements) {
  if (!elements) return Json::array();
  return Json::array({torch_name(elements->dtype)});
}

Json time_or_null(std::uint64_t time_ns) { return time_ns == 0 ? Json() : Json(time_ns); }

/// A message: from which rank to which, of the communicator that was opened first. -1: not known.
struct Route {
  int from, to;
};
Route route_of(const CallRecord& call) {
  const auto first = [&](int rank) {
    return rank < 0 ? rank : call.comm->ranks[static_cast<std::size_t>(rank)];
  };
  const int own = first(call.comm->rank), other = first(call.peer);
  return call.operation == CommOperation::send ? Route{own, other} : Route{other, own};
}

/// Messages in one direction between two ranks are a group of their own. In the group of all ranks fr_trace
/// would miss each message on the ranks that have no part in it.
Group group_of(const CallRecord& call) {
  if (!is_message(call.operation)) return {call.comm->name, call.comm->ranks};
  const auto [from, to] = route_of(call);
  if (from < 0) return {fmt::format("{} any->{}", call.comm->name, to), {to}};
  return {fmt::format("{} {}->{}", call.comm->name, from, to), {std::min(from, to), std::max(from, to)}};
}

/// "gloo:send 0->1", with the places of the ranks in the message's group.
std::string message_name(const CallRecord& call) {
  const auto [from, to] = route_of(call);
  const int first = from < 0 || from < to ? 0 : 1;
  const int second = from < 0 ? 0 : 1 - first;
  return call.operation == CommOperation::send ? fmt::format("gloo:send {}->{}", first, second)
                                               : fmt::format("gloo:recv {}<-{}", second, first);
}

Json entry_of(const CallRecord& call) {
  const bool message = is_message(call.operation);
  const std::uint64_t message_number = call.pair_number == 0 ? call.number : call.pair_number;
  Json entry = {
      {"record_id", call.id},
      {"pg_id", call.comm->id},
      {"process_group", Json::array({group_of(call).name, "undefined"})},
      {"collective_seq_id", message ? message_number : call.number},
      {"p2p_seq_id", message ? message_number : 0},
      {"op_id", call.id + 1},
      {"profiling_name", message ? message_name(call) : profiling_name(call.operation)},
      {"time_created_ns", call.created_ns},
      {"input_sizes", sizes(call.input, call.operation == CommOperation::all_gather_v)},
      {"input_dtypes", dtypes(call.input)},
      {"output_sizes", sizes(call.output, call.operation == CommOperation::reduce_scatter_v)},
      {"output_dtypes", dtypes(call.output)},
      {"state", state_name(call.state)},
      {"time_discovered_started_ns", time_or_null(call.started_ns)},
      {"time_discovered_completed_ns", time_or_null(call.completed_ns)},
      {"retired", call.ended},
      {"timeout_ms", call.timeout ? Json(call.timeout->count() / 1'000'000) : Json()},
      {"is_p2p", message},
      {"frames", Json::array()},
      {"operation", comm_operation_name(call.operation)},
      {"number", call.number},
      {"peer", call.peer},
      {"tag", call.tag},
      {"error", call.error},
  };
  if (call.started_ns != 0 && call.completed_ns > call.started_ns)
    entry["duration_ms"] = static_cast<double>(call.completed_ns - call.started_ns) / 1e6;
  return entry;
}

void describe(Json& config, const Group& group) {
  config[group.name] = {{"name", group.name},
                        {"desc", "undefined"},
                        {"ranks", fmt::format("[{}]", fmt::join(group.ranks, ", "))}};
}

Json number_or_none(std::uint64_t number) { return number == 0 ? Json(-1) : Json(number); }

Json status_of(const RecordedComm& comm) {
  return {{"last_enqueued_collective", number_or_none(comm.last_scheduled)},
          {"last_started_collective", number_or_none(comm.last_started)},
          {"last_completed_collective", number_or_none(comm.last_completed)},
          {"error", comm.why_ended}};
}

}  // namespace

Json trace_of(const CallRing::Snapshot& recorded, std::optional<int> rank) {
  Json config = Json::object(), status = Json::object(), entries = Json::array();
  for (const RecordedComm& comm : recorded.comms) {
    describe(config, {comm.name, comm.ranks});
    status[std::to_string(comm.id)] = status_of(comm);
  }
  for (const CallRecord& call : recorded.calls) {
    entries.push_back(entry_of(call));
    describe(config, group_of(call));
  }
  return {{"version", "2.10"},
          {"comm_lib_version", HEADRACE_VERSION},
          {"rank", rank ? Json(*rank) : Json()},
          {"pg_config", std::move(config)},
          {"pg_status", std::move(status)},
          {"entries", std::move(entries)}};
}

}  // namespace headrace::collectives
