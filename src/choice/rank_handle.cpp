// SPDX-License-Identifier: Apache-2.0
#include "choice/rank_handle.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <vector>

namespace headrace::choice {
namespace {

using Json = nlohmann::json;

constexpr const char* handle_mark = "auto 1";

std::string text_in(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace

std::string RankHandle::encode() const {
  Json json{{"mark", handle_mark}, {"gpu", gpu}, {"uuid", uuid}, {"from", from}, {"table", table}};
  for (const auto& [name, handle] : backends)
    json["backends"][name] = Json::binary(std::vector<std::uint8_t>(handle.begin(), handle.end()));
  const std::vector<std::uint8_t> bytes = Json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

Result<RankHandle> RankHandle::decode(std::string_view bytes) {
  const Json json = Json::from_cbor(bytes.begin(), bytes.end(), true, false);
  const bool is_handle = json.is_object() && text_in(json, "mark") == handle_mark &&
                         json.contains("backends") && json["backends"].is_object();
  if (!is_handle)
    return make_error(Code::invalid_argument,
                      "a handle of {} bytes is none that init_handle of this backend returned", bytes.size());
  RankHandle handle{
      text_in(json, "gpu"), text_in(json, "uuid"), text_in(json, "from"), text_in(json, "table"), {}};
  for (const auto& [name, backend] : json["backends"].items())
    if (backend.is_binary()) {
      const auto& its = backend.get_binary();
      handle.backends[name] = {its.begin(), its.end()};
    }
  return handle;
}

}  // namespace headrace::choice
