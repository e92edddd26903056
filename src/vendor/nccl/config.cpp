// SPDX-License-Identifier: Apache-2.0
#include "vendor/nccl/config.hpp"

#include "base/names.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace::nccl {
namespace {

/// A field: a number or a text.
struct Field {
  std::string_view name;
  int since;
  int Config::*number;
  const char* Config::*text;
  std::size_t end;  // of the field in the struct
};

#define HEADRACE_NCCL_END(member) (offsetof(Config, member) + sizeof(Config::member))
#define HEADRACE_NCCL_NUMBER(name, since, member) \
  Field { name, since, &Config::member, nullptr, HEADRACE_NCCL_END(member) }
#define HEADRACE_NCCL_TEXT(name, since, member) \
  Field { name, since, nullptr, &Config::member, HEADRACE_NCCL_END(member) }
constexpr std::array fields{
    HEADRACE_NCCL_NUMBER("blocking", 21400, blocking),
    HEADRACE_NCCL_NUMBER("cgaClusterSize", 21700, cga_cluster_size),
    HEADRACE_NCCL_NUMBER("minCTAs", 21700, min_ctas),
    HEADRACE_NCCL_NUMBER("maxCTAs", 21700, max_ctas),
    HEADRACE_NCCL_TEXT("netName", 21700, net_name),
    HEADRACE_NCCL_NUMBER("splitShare", 21800, split_share),
    HEADRACE_NCCL_NUMBER("trafficClass", 22500, traffic_class),
    HEADRACE_NCCL_TEXT("commName", 22700, comm_name),
    HEADRACE_NCCL_NUMBER("collnetEnable", 22700, collnet_enable),
    HEADRACE_NCCL_NUMBER("CTAPolicy", 22700, cta_policy),
    HEADRACE_NCCL_NUMBER("shrinkShare", 22700, shrink_share),
    HEADRACE_NCCL_NUMBER("nvlsCTAs", 22700, nvls_ctas),
    HEADRACE_NCCL_NUMBER("nChannelsPerNetPeer", 22800, channels_per_net_peer),
    HEADRACE_NCCL_NUMBER("nvlinkCentricSched", 22800, nvlink_centric_sched),
    HEADRACE_NCCL_NUMBER("graphUsageMode", 22900, graph_usage_mode),
    HEADRACE_NCCL_NUMBER("numRmaCtx", 22900, num_rma_ctx),
    HEADRACE_NCCL_NUMBER("maxP2pPeers", 23000, max_p2p_peers),
    HEADRACE_NCCL_NUMBER("graphStreamOrdering", 23005, graph_stream_ordering),
    HEADRACE_NCCL_NUMBER("launchOrderImplicit", 23100, launch_order_implicit),
    HEADRACE_NCCL_NUMBER("numRmaSig", 23100, num_rma_sig),
    HEADRACE_NCCL_NUMBER("rmaEagerInit", 23100, rma_eager_init),
    HEADRACE_NCCL_NUMBER("hostCftMode", 23100, host_cft_mode),
    HEADRACE_NCCL_NUMBER("nvlsHostMode", 23100, nvls_host_mode),
};
#undef HEADRACE_NCCL_END
#undef HEADRACE_NCCL_NUMBER
#undef HEADRACE_NCCL_TEXT

const Field* find(std::string_view name) {
  const auto* const found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : found;
}

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error unknown(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Field& field : fields) names.push_back(field.name);
  return make_error(Code::invalid_argument, "there is no hint {}: did you mean {}? There are: {}",
                    name_text(name), nearest_name(name, names), fmt::join(names, ", "));
}

/// The size of the struct in a library of this version.
std::size_t size_in(int version) {
  std::size_t end = 0;
  for (const Field& field : fields)
    if (field.since <= version) end = std::max(end, field.end);
  constexpr std::size_t unit = alignof(Config);
  return (end + unit - 1) / unit * unit;
}

}  // namespace

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const Field& field : fields) names.emplace_back(field.name);
  return names;
}

Result<CommConfig> CommConfig::make(const Library& library, std::map<std::string, std::string> hints) {
  for (const auto& [name, value] : hints) {
    const Field* const field = find(name);
    if (field == nullptr) return unknown(name);
    if (field->since > library.version)
      return needs_version(library, fmt::format("hint {}", name), field->since);
    if (field->number != nullptr && !number_in(value))
      return make_error(Code::invalid_argument, "hint {} is {}: give a number", name, name_text(value));
  }
  return CommConfig(library.version, std::move(hints));
}

Config CommConfig::get() const {
  Config config;
  config.size = size_in(version_);
  config.version = static_cast<unsigned>(version_);
  config.blocking = 1;
  for (const auto& [name, value] : hints_) {
    const Field& field = *find(name);
    if (field.number != nullptr)
      config.*field.number = *number_in(value);
    else
      config.*field.text = value.c_str();
  }
  return config;
}

}  // namespace headrace::nccl
