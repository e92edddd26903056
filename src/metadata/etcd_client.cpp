// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_client.hpp"

#include "metadata/base64.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>

namespace headrace::metadata {
namespace {

using Json = nlohmann::json;

/// The gateway writes 64-bit numbers as text, omits zeros, and reports failed calls with a gRPC code.
std::int64_t number(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_string()) return 0;
  const auto& text = found->get_ref<const std::string&>();
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool truth(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::optional<std::string> bytes(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return std::string();
  return found->is_string() ? decode_base64(found->get_ref<const std::string&>()) : std::nullopt;
}

std::int64_t revision_of(const Json& answer) {
  const auto header = answer.find("header");
  return header != answer.end() && header->is_object() ? number(*header, "revision") : 0;
}

Error no_such_json(std::string_view what, std::string_view text) {
  return make_error(Code::corrupt, "etcd's answer to {} is not in the form that its gateway documents: {}",
                    what, text.substr(0, 200));
}

Result<Json> parse(std::string_view what, std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return no_such_json(what, text);
  return json;
}

/// The Code for a gRPC code.
Code code_of_grpc(std::int64_t code) {
  switch (code) {
    case 1:
      return Code::canceled;
    case 3:
      return Code::invalid_argument;
    case 4:
      return Code::timed_out;
    case 5:
      return Code::not_found;
    case 7:
    case 16:
      return Code::invalid_argument;  // the credentials do not suffice, or are missing
    case 8:
      return Code::exhausted;
    case 14:
      return Code::peer_lost;
    default:
      return Code::backend_failed;
  }
}

Error etcd_error(const Json& error) {
  const auto text = error.find("message");
  return Error{code_of_grpc(number(error, error.contains("grpc_code") ? "grpc_code" : "code")),
               "etcd: " + (text != error.end() && text->is_string() ? text->get<std::string>()
                                                                    : error.dump().substr(0, 200))};
}

Error status_error(const HttpResponse& response) {
  const Json json = Json::parse(response.body, nullptr, false);
  if (json.is_object() && json.contains("code")) return etcd_error(json);
  const Code code = response.status == 502 || response.status == 503 || response.status == 504
                        ? Code::peer_lost
                        : Code::backend_failed;
  return make_error(code, "etcd answers with status {}: {}", response.status, response.body.substr(0, 200));
}

/// Whether another endpoint may succeed.
bool elsewhere(Code code) {
  return code == Code::peer_lost || code == Code::backend_failed || code == Code::timed_out;
}

void pause(std::chrono::milliseconds time, Deadline deadline, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  const Deadline end = Deadline::earliest(deadline, Deadline::after(time));
  stopped.wait_until(lock, stop, end.time_point(), [] { return false; });
}

Json json_of(const EtcdRange& range) {
  Json json = {{"key", encode_base64(range.begin)}};
  if (!range.end.empty()) json["range_end"] = encode_base64(range.end);
  return json;
}

Json json_of(const EtcdStep& step) {
  if (const auto* remove = std::get_if<EtcdDelete>(&step))
    return {{"request_delete_range", json_of(remove->range)}};
  const auto& put = std::get<EtcdPut>(step);
  return {{"request_put",
           {{"key", encode_base64(put.key)},
            {"value", encode_base64(put.value)},
            {"lease", std::to_string(put.lease)}}}};
}

Json json_of(const EtcdCondition& condition) {
  Json json = {{"key", encode_base64(condition.key)}, {"result", "EQUAL"}};
  if (condition.kind == EtcdCondition::Kind::absent) {
    json["target"] = "VERSION";
    json["version"] = "0";
  } else {
    json["target"] = "LEASE";
    json["lease"] = std::to_string(condition.lease);
  }
  return json;
}

}  // namespace

EtcdRange EtcdRange::prefix(std::string_view prefix) {
  EtcdRange range{std::string(prefix), std::string(prefix)};
  range.end.back() = static_cast<char>(static_cast<unsigned char>(range.end.back()) + 1);
  return range;
}

std::string EtcdClient::where() const {
  std::string all = "etcd at ";
  for (const std::string& url : endpoints_.urls()) all.append(all.ends_with(' ') ? "" : ", ").append(url);
  return all;
}

Result<std::string> EtcdClient::post(const std::string& path, const std::string& body, Deadline deadline,
                                     const std::stop_token& stop) {
  const std::size_t endpoints = endpoints_.urls().size();
  Error last;
  for (std::size_t attempt = 0; attempt < 2 * endpoints; ++attempt) {
    // An endpoint that accepts the connection and never answers must not use up the time of the others.
    const Deadline slice =
        endpoints == 1 ? deadline : Deadline::earliest(deadline, Deadline::after(std::chrono::seconds(3)));
    auto response = endpoints_.post(*http_, path, HttpRequest{{}, body}, slice, stop);
    if (response && response->status == 200) return std::move(response->body);
    last = response ? status_error(*response) : std::move(response).error();
    if (!elsewhere(last.code) || deadline.expired() || stop.stop_requested()) break;
    endpoints_.move_on();
    if (attempt + 1 >= endpoints) pause(std::chrono::milliseconds(200), deadline, stop);
  }
  return std::move(last).within("ask " + where());
}

Result<EtcdRangeAnswer> EtcdClient::range(const EtcdRange& range, bool keys_only, Deadline deadline,
                                          const std::stop_token& stop) {
  Json request = json_of(range);
  if (keys_only) request["keys_only"] = true;
  HEADRACE_TRY(text, post("/v3/kv/range", request.dump(), deadline, stop));
  HEADRACE_TRY(json, parse("range", text));
  EtcdRangeAnswer answer;
  answer.revision = revision_of(json);
  const auto pairs = json.find("kvs");
  if (pairs == json.end()) return answer;
  if (!pairs->is_array()) return no_such_json("range", text);
  for (const Json& pair : *pairs) {
    const auto key = pair.is_object() ? bytes(pair, "key") : std::nullopt;
    const auto value = pair.is_object() ? bytes(pair, "value") : std::nullopt;
    if (!key || !value) return no_such_json("range", text);
    answer.pairs.push_back({*key, *value, number(pair, "mod_revision")});
  }
  return answer;
}

Result<bool> EtcdClient::transact(const std::vector<EtcdCondition>& conditions,
                                  const std::vector<EtcdStep>& steps, Deadline deadline,
                                  const std::stop_token& stop) {
  Json request = {{"compare", Json::array()}, {"success", Json::array()}};
  for (const EtcdCondition& condition : conditions) request["compare"].push_back(json_of(condition));
  for (const EtcdStep& step : steps) request["success"].push_back(json_of(step));
  HEADRACE_TRY(text, post("/v3/kv/txn", request.dump(), deadline, stop));
  HEADRACE_TRY(json, parse("txn", text));
  return truth(json, "succeeded");
}

Result<EtcdClient::Granted> EtcdClient::grant(std::chrono::seconds ttl, Deadline deadline,
                                              const std::stop_token& stop) {
  HEADRACE_TRY(text,
               post("/v3/lease/grant", Json{{"TTL", std::to_string(ttl.count())}}.dump(), deadline, stop));
  HEADRACE_TRY(json, parse("lease/grant", text));
  const Granted granted{number(json, "ID"), std::chrono::seconds(number(json, "TTL"))};
  if (granted.lease == 0 || granted.ttl <= std::chrono::seconds(0)) return no_such_json("lease/grant", text);
  return granted;
}

Result<std::chrono::seconds> EtcdClient::keep_alive(EtcdLease lease, Deadline deadline,
                                                    const std::stop_token& stop) {
  HEADRACE_TRY(text, post("/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}}.dump(), deadline, stop));
  HEADRACE_TRY(json, parse("lease/keepalive", text));
  // A stream of one message: the answer, or an error, is one level down.
  if (const auto error = json.find("error"); error != json.end() && error->is_object())
    return etcd_error(*error);
  const auto result = json.find("result");
  if (result == json.end() || !result->is_object()) return no_such_json("lease/keepalive", text);
  return std::chrono::seconds(number(*result, "TTL"));
}

Result<void> EtcdClient::revoke(EtcdLease lease, Deadline deadline) {
  HEADRACE_TRY_VOID(post("/v3/lease/revoke", Json{{"ID", std::to_string(lease)}}.dump(), deadline, {}));
  return {};
}

Result<EtcdWatchAnswer> parse_watch_line(std::string_view line) {
  HEADRACE_TRY(json, parse("watch", line));
  if (const auto error = json.find("error"); error != json.end() && error->is_object())
    return etcd_error(*error);
  const auto result = json.find("result");
  if (result == json.end() || !result->is_object()) return no_such_json("watch", line);
  EtcdWatchAnswer answer{revision_of(*result), truth(*result, "created"), truth(*result, "canceled"), {}};
  const auto events = result->find("events");
  if (events == result->end()) return answer;
  if (!events->is_array()) return no_such_json("watch", line);
  for (const Json& event : *events) {
    const auto pair = event.is_object() ? event.find("kv") : event.end();
    if (!event.is_object() || pair == event.end() || !pair->is_object()) return no_such_json("watch", line);
    const auto key = bytes(*pair, "key");
    if (!key) return no_such_json("watch", line);
    const auto type = event.find("type");
    answer.events.push_back({type != event.end() && *type == "DELETE", *key, number(*pair, "mod_revision")});
  }
  return answer;
}

Result<void> EtcdClient::watch(const EtcdRange& range, std::int64_t start_revision,
                               const std::function<bool(const EtcdWatchAnswer&)>& on_answer,
                               std::stop_token stop) {
  constexpr std::size_t most_line_bytes = std::size_t{64} << 20;
  Json create = json_of(range);
  create["start_revision"] = std::to_string(start_revision);
  // A member that has lost contact with the others must say so and not fall silent.
  const HttpRequest request{{}, Json{{"create_request", create}}.dump(), {"Grpc-Metadata-hasleader: true"}};

  std::stop_source enough;
  const std::stop_callback pass_on(std::move(stop), [&] { enough.request_stop(); });
  std::optional<Result<void>> ended;  // set if this side ended the stream: the result
  std::string line;
  const auto end = [&](Result<void> why) {
    ended = std::move(why);
    enough.request_stop();
  };
  const auto take_line = [&] {
    auto answer = parse_watch_line(line);
    line.clear();
    if (!answer) return end(std::move(answer).error());
    if (!on_answer(*answer)) end({});
  };
  auto streamed = endpoints_.stream(
      *http_, "/v3/watch", request,
      [&](std::string_view piece) {
        while (!piece.empty() && !ended) {
          const std::size_t length = std::min(piece.find('\n'), piece.size());
          if (line.size() + length > most_line_bytes) return end(no_such_json("watch", line));
          line.append(piece.substr(0, length));
          if (length == piece.size()) return;
          piece.remove_prefix(length + 1);
          if (!line.empty()) take_line();
        }
      },
      enough.get_token());
  if (ended) return std::move(*ended);
  if (streamed.code() != Code::ok && elsewhere(streamed.code())) endpoints_.move_on();
  return streamed;
}

}  // namespace headrace::metadata
