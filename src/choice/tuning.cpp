// SPDX-License-Identifier: Apache-2.0
#include "choice/tuning.hpp"

#include "base/names.hpp"
#include "base/text.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace headrace::choice {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int version = 1;
constexpr const char* remedy = "correct it, or write a new file by `headrace tune`";
constexpr std::array<std::string_view, 8> entry_keys{"gpu",         "ranks",       "sharing",    "operation",
                                                     "dtype_bytes", "up_to_bytes", "registered", "backend"};

template <class Names>
std::vector<std::string_view> views(const Names& names) {
  return {names.begin(), names.end()};
}

/// The operations that a table may name: those of communicators in which all ranks take part.
const std::vector<std::pair<std::string_view, CommOperation>>& operations() {
  static const auto all = [] {
    std::vector<std::pair<std::string_view, CommOperation>> named;
    for (auto i = static_cast<int>(CommOperation::all_reduce); i <= static_cast<int>(CommOperation::barrier);
         ++i)
      named.emplace_back(comm_operation_name(static_cast<CommOperation>(i)), static_cast<CommOperation>(i));
    return named;
  }();
  return all;
}

/// One entry of a file: reads its values and says what is wrong with them.
class EntryReader {
 public:
  EntryReader(const OrderedJson& json, std::string where) : json_(json), where_(std::move(where)) {}

  Result<CommTuningEntry> read() const {
    HEADRACE_TRY_VOID(check_keys());
    CommTuningEntry entry;
    HEADRACE_TRY(gpu, text("gpu", "the name of a GPU"));
    entry.gpu = gpu.value_or("");
    HEADRACE_TRY(ranks, number("ranks", 1, 4096));
    if (ranks) entry.ranks = static_cast<int>(*ranks);
    HEADRACE_TRY(dtype_bytes, number("dtype_bytes", 1, 16));
    if (dtype_bytes) entry.dtype_bytes = static_cast<int>(*dtype_bytes);
    HEADRACE_TRY(up_to_bytes, number("up_to_bytes", 0, std::numeric_limits<std::int64_t>::max()));
    entry.up_to_bytes = up_to_bytes;
    HEADRACE_TRY(sharing, boolean("sharing"));
    entry.sharing = sharing;
    HEADRACE_TRY(registered, boolean("registered"));
    entry.registered = registered;
    HEADRACE_TRY(operation, operation_named());
    entry.operation = operation;
    HEADRACE_TRY(backend, backend_named());
    entry.backend = std::move(backend);
    return entry;
  }

 private:
  [[nodiscard]] Error wrong(std::string_view key, const std::string& expected) const {
    const auto value = json_.contains(key) ? json_[std::string(key)].dump(
                                                 -1, ' ', false, OrderedJson::error_handler_t::replace)
                                           : std::string("missing");
    return make_error(Code::corrupt, "{}: {} is {}, and {} is expected: {}", where_, key, value, expected,
                      remedy);
  }
  [[nodiscard]] Result<void> check_keys() const {
    if (!json_.is_object())
      return make_error(Code::corrupt,
                        "{} is no object, as {{\"up_to_bytes\": 65536, \"backend\": \"p2p\"}}: {}", where_,
                        remedy);
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(entry_keys, key) != entry_keys.end()) continue;
      return make_error(Code::corrupt, "{} has a {}: did you mean {}? There are: {}", where_, name_text(key),
                        nearest_name(key, views(entry_keys)), fmt::join(entry_keys, ", "));
    }
    return {};
  }
  Result<std::optional<std::string>> text(const char* key, const char* expected) const {
    const auto at = json_.find(key);
    if (at == json_.end()) return std::optional<std::string>();
    if (!at->is_string()) return wrong(key, expected);
    return std::optional(at->get<std::string>());
  }
  Result<std::optional<std::uint64_t>> number(const char* key, std::uint64_t least,
                                              std::uint64_t most) const {
    const auto at = json_.find(key);
    if (at == json_.end()) return std::optional<std::uint64_t>();
    if (!at->is_number_unsigned() || at->get<std::uint64_t>() < least || at->get<std::uint64_t>() > most)
      return wrong(key, fmt::format("a whole number from {} to {}", least, most));
    return std::optional(at->get<std::uint64_t>());
  }
  Result<std::optional<bool>> boolean(const char* key) const {
    const auto at = json_.find(key);
    if (at == json_.end()) return std::optional<bool>();
    if (!at->is_boolean()) return wrong(key, "true or false");
    return std::optional(at->get<bool>());
  }
  Result<std::optional<CommOperation>> operation_named() const {
    HEADRACE_TRY(name, text("operation", "the name of an operation"));
    if (!name) return std::optional<CommOperation>();
    const auto at =
        std::ranges::find(operations(), *name, &std::pair<std::string_view, CommOperation>::first);
    if (at != operations().end()) return std::optional(at->second);
    std::vector<std::string_view> names;
    for (const auto& [known, operation] : operations()) names.push_back(known);
    return wrong("operation", fmt::format("one of {} (did you mean {}?)", fmt::join(names, ", "),
                                          nearest_name(*name, names)));
  }
  Result<std::string> backend_named() const {
    const std::string expected = fmt::format("one of {}", fmt::join(table_backends, ", "));
    HEADRACE_TRY(name, text("backend", expected.c_str()));
    if (!name || std::ranges::find(table_backends, *name) == table_backends.end())
      return wrong("backend", expected);
    return std::move(*name);
  }

  const OrderedJson& json_;
  const std::string where_;
};

/// A version that this build does not know may mean the same words differently.
Result<void> check_version(const OrderedJson& file, const std::string& from) {
  const auto at = file.find("version");
  if (at == file.end() || !at->is_number_unsigned() || *at == 0U)
    return make_error(Code::corrupt, "{} has no \"version\": {} is expected; {}", from, version, remedy);
  if (*at > static_cast<unsigned>(version))
    return make_error(
        Code::not_supported,
        "{} has version {}, and this Headrace reads {}: write it by `headrace tune` of this one, "
        "or use a newer Headrace",
        from, at->dump(), version);
  return {};
}

OrderedJson json_of(const CommTuningEntry& entry) {
  OrderedJson json = OrderedJson::object();
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

bool holds(const CommTuningEntry& entry, const Topology& topology) {
  return (entry.gpu.empty() || entry.gpu == topology.gpu) &&
         entry.ranks.value_or(topology.ranks) == topology.ranks &&
         entry.sharing.value_or(topology.sharing) == topology.sharing;
}

}  // namespace

Result<CommTuning> parse_tuning(std::string_view text, const std::string& from) {
  if (text.size() > most_text_bytes)
    return make_error(Code::corrupt, "{} has {} bytes, and a table has at most {}: {}", from, text.size(),
                      most_text_bytes, remedy);
  OrderedJson file;
  try {
    file = OrderedJson::parse(text);
  } catch (const OrderedJson::parse_error& error) {
    const std::string_view said =
        error.what();  // "[json.exception.parse_error.101] parse error at line 3, ..."
    return make_error(Code::corrupt, "{}: {}: {}", from,
                      said.substr(std::min(said.find("] ") + 2, said.size())), remedy);
  }
  if (!file.is_object())
    return make_error(Code::corrupt, "{} is no object with \"version\" and \"entries\": {}", from, remedy);
  HEADRACE_TRY_VOID(check_version(file, from));
  const auto entries = file.find("entries");
  if (entries == file.end() || !entries->is_array())
    return make_error(Code::corrupt, "{} has no list \"entries\": {}", from, remedy);
  CommTuning tuning{from, {}};
  for (const OrderedJson& json : *entries) {
    HEADRACE_TRY(entry,
                 EntryReader(json, fmt::format("{}, entry {}", from, tuning.entries.size() + 1)).read());
    tuning.entries.push_back(std::move(entry));
  }
  return tuning;
}

std::string tuning_text(const CommTuning& tuning) {
  std::vector<std::string> lines;
  for (const CommTuningEntry& entry : tuning.entries)
    lines.push_back("\n    " + json_of(entry).dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  return fmt::format("{{\n  \"version\": {},\n  \"entries\": [{}{}]\n}}\n", version, fmt::join(lines, ","),
                     lines.empty() ? "" : "\n  ");
}

Choices::Choices(const CommTuning& tuning, const Topology& topology, const std::vector<std::string>& open)
    : rows_(operations().size()) {
  const CommTuning built_in = built_in_comm_tuning();
  for (const auto* table : {&tuning.entries, &built_in.entries})
    for (const CommTuningEntry& entry : *table) {
      const auto at = std::ranges::find(open, entry.backend);
      if (at == open.end() || !holds(entry, topology)) continue;
      const Row row{entry.dtype_bytes, entry.up_to_bytes.value_or(std::numeric_limits<std::uint64_t>::max()),
                    entry.registered, static_cast<std::size_t>(at - open.begin())};
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if (entry.operation.value_or(operations()[i].second) == operations()[i].second)
          rows_[i].push_back(row);
    }
}

std::optional<std::size_t> Choices::pick(const CallSize& call) const {
  const auto at =
      static_cast<std::size_t>(call.operation) - static_cast<std::size_t>(CommOperation::all_reduce);
  if (at >= rows_.size()) return std::nullopt;
  for (const Row& row : rows_[at])
    if (row.dtype_bytes.value_or(call.dtype_bytes) == call.dtype_bytes && call.bytes <= row.up_to_bytes &&
        row.registered.value_or(call.registered) == call.registered)
      return row.backend;
  return std::nullopt;
}

}  // namespace headrace::choice

namespace headrace {

/// Two and four ranks on H200, beside NCCL 2.28 in graphs (bench/notes/collectives.md). Larger sizes were not
/// measured, or, with registered tensors, take as long over either.
CommTuning built_in_comm_tuning() {
  constexpr std::uint64_t kib = 1 << 10, mib = 1 << 20;
  const CommOperation sums = CommOperation::all_reduce;
  return {"built in",
          {{.operation = sums, .up_to_bytes = 16 * mib, .registered = true, .backend = "p2p"},
           {.ranks = 2, .operation = sums, .up_to_bytes = 16 * mib, .backend = "p2p"},
           {.operation = sums, .up_to_bytes = 512 * kib, .backend = "p2p"},
           {.operation = sums, .up_to_bytes = 1 * mib, .backend = "nccl"},
           {.operation = sums, .up_to_bytes = 4 * mib, .backend = "p2p"},
           {.operation = sums, .backend = "nccl"},
           {.up_to_bytes = 8 * mib, .registered = true, .backend = "p2p"},
           {.up_to_bytes = 1 * mib, .backend = "p2p"},
           {.backend = "nccl"}}};
}

}  // namespace headrace
