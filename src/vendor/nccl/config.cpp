// SPDX-License-Identifier: Apache-2.0
#include "vendor/nccl/config.hpp"

#include "base/names.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::nccl {
namespace {

/// A field of a configuration: a number, a large one, or a text.
template <class Struct>
struct Field {
  std::string_view name;
  int since;
  std::size_t end;  // of the field in the struct
  int Struct::*number = nullptr;
  const char* Struct::*text = nullptr;
  std::uint64_t Struct::*large = nullptr;
};

#define HEADRACE_NCCL_FIELD(type, kind, hint, version, member)                                \
  Field<type> {                                                                               \
    .name = (hint), .since = (version), .end = offsetof(type, member) + sizeof(type::member), \
    .kind = &type::member                                                                     \
  }
#define HEADRACE_NCCL_NUMBER(name, since, member) HEADRACE_NCCL_FIELD(Config, number, name, since, member)
#define HEADRACE_NCCL_TEXT(name, since, member) HEADRACE_NCCL_FIELD(Config, text, name, since, member)
constexpr std::array comm_fields{
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
#define HEADRACE_NCCL_OF_CALL(kind, name, member) \
  HEADRACE_NCCL_FIELD(CollConfig, kind, name, version_of_call_config, member)
constexpr std::array call_fields{
    HEADRACE_NCCL_OF_CALL(number, "minCTAs", min_ctas),
    HEADRACE_NCCL_OF_CALL(number, "maxCTAs", max_ctas),
    HEADRACE_NCCL_OF_CALL(number, "nvlsCTAs", nvls_ctas),
    HEADRACE_NCCL_OF_CALL(number, "cgaClusterSize", cga_cluster_size),
    HEADRACE_NCCL_OF_CALL(text, "algSelection", algorithms),
    HEADRACE_NCCL_OF_CALL(number, "forceAlgSelection", force_algorithms),
    HEADRACE_NCCL_OF_CALL(number, "CTAPolicy", cta_policy),
    HEADRACE_NCCL_OF_CALL(large, "userProfilerTag", profiler_tag),
};
#undef HEADRACE_NCCL_OF_CALL
#undef HEADRACE_NCCL_NUMBER
#undef HEADRACE_NCCL_TEXT
#undef HEADRACE_NCCL_FIELD

template <class Fields>
auto find(const Fields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, [](const auto& field) { return field.name; });
  return found == fields.end() ? nullptr : &*found;
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

constexpr std::string_view policy_hint = "CTAPolicy";
constexpr std::array<std::pair<std::string_view, int>, 3> policies{
    {{"default", policy_default}, {"efficiency", policy_efficiency}, {"zero", policy_zero}}};

/// The number that a hint gives.
std::optional<int> small_number(std::string_view hint, std::string_view text) {
  for (const auto& [name, value] : policies)
    if (hint == policy_hint && text == name) return value;
  return number_in<int>(text);
}

template <class Fields>
std::vector<std::string> names_of(const Fields& fields) {
  std::vector<std::string> names;
  for (const auto& field : fields) names.emplace_back(field.name);
  return names;
}

template <class Fields>
Error unknown(const Fields& fields, const std::string& name, std::string_view whose) {
  std::vector<std::string_view> names;
  for (const auto& field : fields) names.push_back(field.name);
  return make_error(Code::invalid_argument, "there is no hint {}{}: did you mean {}? There are: {}",
                    name_text(name), whose, nearest_name(name, names), fmt::join(names, ", "));
}

/// The size of the struct in a library of this version.
template <class Struct, class Fields>
std::size_t size_in(const Fields& fields, int version) {
  std::size_t end = 0;
  for (const auto& field : fields)
    if (field.since <= version) end = std::max(end, field.end);
  constexpr std::size_t unit = alignof(Struct);
  return (end + unit - 1) / unit * unit;
}

template <class Fields>
Result<void> check(const Fields& fields, const Library& library, const Hints& hints, std::string_view whose) {
  for (const auto& [name, value] : hints) {
    const auto* const field = find(fields, name);
    if (field == nullptr) return unknown(fields, name, whose);
    if (field->since > library.version)
      return needs_version(library, fmt::format("hint {}{}", name, whose), field->since);
    const bool reads = field->number != nullptr  ? small_number(name, value).has_value()
                       : field->large != nullptr ? number_in<std::uint64_t>(value).has_value()
                                                 : true;
    if (!reads)
      return make_error(Code::invalid_argument, "hint {} is {}: give a number{}", name, name_text(value),
                        name == policy_hint ? ", or default, efficiency or zero" : "");
  }
  return {};
}

template <class Struct, class Fields>
void fill(Struct& config, const Fields& fields, const Hints& hints) {
  for (const auto& [name, value] : hints) {
    const auto& field = *find(fields, name);
    if (field.number != nullptr)
      config.*field.number = *small_number(name, value);
    else if (field.large != nullptr)
      config.*field.large = *number_in<std::uint64_t>(value);
    else
      config.*field.text = value.c_str();
  }
}

constexpr std::string_view of_a_call = " of a call";

}  // namespace

std::vector<std::string> config_names() { return names_of(comm_fields); }
std::vector<std::string> call_config_names() { return names_of(call_fields); }

Result<CommConfig> CommConfig::make(const Library& library, Hints hints) {
  HEADRACE_TRY_VOID(check(comm_fields, library, hints, ""));
  return CommConfig(library.version, std::move(hints));
}

Config CommConfig::get() const {
  Config config;
  config.size = size_in<Config>(comm_fields, version_);
  config.version = static_cast<unsigned>(version_);
  config.blocking = 1;
  fill(config, comm_fields, hints_);
  return config;
}

Result<CallConfig> CallConfig::make(const Library& library, Hints hints) {
  HEADRACE_TRY_VOID(check(call_fields, library, hints, of_a_call));
  return CallConfig(library.version, std::move(hints));
}

CollConfig CallConfig::get() const {
  CollConfig config;
  config.size = version_ < 23200 ? size_in<CollConfig>(call_fields, version_) : sizeof config;
  config.version = static_cast<unsigned>(version_);
  fill(config, call_fields, hints_);
  return config;
}

}  // namespace headrace::nccl
