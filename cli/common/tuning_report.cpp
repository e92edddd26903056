// SPDX-License-Identifier: Apache-2.0
#include "cli/common/tuning_report.hpp"

#include <fmt/format.h>

#include <string>

namespace headrace::cli {
namespace {

template <class Value>
std::string or_any(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "any";
}

std::string yes_or_any(const std::optional<bool>& value) {
  if (!value) return "any";
  return *value ? "yes" : "no";
}

}  // namespace

nlohmann::ordered_json tuning_entry_json(const CommTuningEntry& entry) {
  auto json = nlohmann::ordered_json::object();
  if (!entry.gpu.empty()) json["gpu"] = entry.gpu;
  if (entry.ranks) json["ranks"] = *entry.ranks;
  if (entry.sharing) json["sharing"] = *entry.sharing;
  if (entry.operation) json["operation"] = comm_operation_name(*entry.operation);
  if (entry.dtype_bytes) json["dtype_bytes"] = *entry.dtype_bytes;
  if (entry.up_to_bytes) json["up_to_bytes"] = *entry.up_to_bytes;
  if (entry.registered) json["registered"] = *entry.registered;
  json["backend"] = entry.backend;
  return json;
}

Table tuning_table(std::span<const CommTuningEntry> entries) {
  constexpr auto right = Table::Align::right;
  Table table({{"gpu"},
               {"ranks", right},
               {"share a GPU"},
               {"operation"},
               {"element", right},
               {"up to bytes", right},
               {"registered"},
               {"backend"}});
  for (const CommTuningEntry& entry : entries)
    table.add({entry.gpu.empty() ? "any" : entry.gpu, or_any(entry.ranks), yes_or_any(entry.sharing),
               entry.operation ? std::string(comm_operation_name(*entry.operation)) : "any",
               or_any(entry.dtype_bytes), or_any(entry.up_to_bytes), yes_or_any(entry.registered),
               entry.backend});
  return table;
}

}  // namespace headrace::cli
