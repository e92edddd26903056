// SPDX-License-Identifier: Apache-2.0
// Agent::query: asks one backend for a file, device or object, and returns the answer as text.
#include <headrace/agent.hpp>

#include "agent/agent_impl.hpp"
#include "engine/local_region.hpp"

#include <fmt/ranges.h>
#include <msgpack.hpp>

namespace headrace {
namespace {

using Known = std::map<std::string, std::string>;

constexpr std::chrono::seconds patience{30};

std::string described(const MemoryRange& what) {
  return fmt::format("{} {}", kind_name(what.kind),
                     what.path.empty() ? fmt::format("of descriptor {}", what.file_descriptor) : what.path);
}

/// Why `asked` cannot be asked, and which backends can.
Error nothing_to_ask(const engine::BackendInstance& asked, const std::vector<engine::BackendInstance*>& all,
                     const MemoryRange& what) {
  std::vector<std::string_view> able;
  for (const engine::BackendInstance* instance : all)
    if (instance->can(HEADRACE_QUERY)) able.push_back(instance->name());
  if (!able.empty())
    return make_error(
        Code::not_supported,
        "query of {}: backend {} keeps no files, devices or objects; ask {}, which this agent has open",
        described(what), asked.name(), fmt::join(able, " or "));
  return make_error(
      Code::not_supported,
      "query of {}: backend {} keeps no files, devices or objects, and no other "
      "backend of this agent does: open one for storage; `headrace plugins` lists the backends of "
      "this version",
      described(what), asked.name());
}

std::string as_text(const msgpack::object& value) {
  switch (value.type) {
    case msgpack::type::STR:
      return value.as<std::string>();
    case msgpack::type::POSITIVE_INTEGER:
      return std::to_string(value.as<std::uint64_t>());
    case msgpack::type::NEGATIVE_INTEGER:
      return std::to_string(value.as<std::int64_t>());
    case msgpack::type::BOOLEAN:
      return value.as<bool>() ? "true" : "false";
    default:
      return "";
  }
}

/// An array of one: nil, or a map.
Result<std::optional<Known>> read_answer(const std::string& bytes, const std::string& backend) {
  try {
    // A zone of our own: GCC 12 takes the `new zone` in the overload without it for a mismatched new and
    // delete.
    msgpack::zone zone;
    const auto rows = msgpack::unpack(zone, bytes.data(), bytes.size()).as<std::vector<msgpack::object>>();
    if (rows.size() != 1)
      return make_error(Code::internal, "backend {} returned {} rows for a query of one", backend,
                        rows.size());
    if (rows.front().is_nil()) return std::optional<Known>();
    Known known;
    for (const auto& [key, value] : rows.front().as<std::map<std::string, msgpack::object>>())
      known[key] = as_text(value);
    return std::optional(std::move(known));
  } catch (const std::exception& e) {
    return make_error(Code::internal, "backend {} returned an answer that is not msgpack: {}", backend,
                      e.what());
  }
}

}  // namespace

Result<std::optional<Known>> Agent::query(const MemoryRange& what, const std::string& backend) {
  const engine::Call call(impl_->engine->calls());
  HEADRACE_TRY_VOID(call.admitted());
  if (what.kind == MemoryKind::dram || what.kind == MemoryKind::vram)
    return make_error(Code::invalid_argument,
                      "a query asks whether a file, block device or object exists, not about {}: set the "
                      "range's kind and path",
                      kind_name(what.kind));
  const std::vector<engine::BackendInstance*> all = impl_->engine->backends().all();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto* instance) { return instance->name() == backend; });
  if (found == all.end()) {
    std::vector<std::string_view> names;
    for (const engine::BackendInstance* instance : all) names.push_back(instance->name());
    return make_error(Code::not_found,
                      "backend {} is not open in this agent, which has {}: open it with create_backend",
                      backend, fmt::join(names, ", "));
  }
  if (!(*found)->can(HEADRACE_QUERY)) return nothing_to_ask(**found, all, what);
  engine::LocalRegion region;
  region.range = what;
  region.info.kind = what.kind;
  region.info.length_bytes = what.length_bytes;
  HEADRACE_TRY(bytes, (*found)->query(region.to_c(), Deadline::after(patience).point_ns()));
  return read_answer(bytes, backend);
}

}  // namespace headrace
