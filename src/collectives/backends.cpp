// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "collectives/check_options.hpp"
#include "collectives/comm_library.hpp"
#include "collectives/fake_comm.hpp"
#include "collectives/host_comm.hpp"
#include "collectives/left_out.hpp"
#include "collectives/table_comm.hpp"
#include "gpu/gpus.hpp"
#include "nccl/backend.hpp"
#include "oneccl/backend.hpp"
#include "p2p/backend.hpp"
#include "p2p/settings.hpp"

#include <headrace/comm_backend.hpp>
#include <headrace/comm_tuning.hpp>
#include <headrace/version.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

namespace headrace::collectives {
namespace {

Result<std::shared_ptr<Comm::Core>> open_auto(const CommOptions& options);

struct LinkedIn {
  std::string_view name;
  std::uint32_t devices;  // headrace_comm_devices_v1
  Result<std::shared_ptr<Comm::Core>> (*open)(const CommOptions& options);
};
constexpr std::array linked_in{
    LinkedIn{choice::backend_name, HEADRACE_COMM_MOVES_HOST_MEMORY | HEADRACE_COMM_MOVES_CUDA_MEMORY,
             open_auto},
    LinkedIn{"fake", HEADRACE_COMM_MOVES_HOST_MEMORY | HEADRACE_COMM_MOVES_CUDA_MEMORY, FakeComm::open},
    LinkedIn{"host", HEADRACE_COMM_MOVES_HOST_MEMORY, HostComm::open},
    LinkedIn{"lazy", HEADRACE_COMM_MOVES_HOST_MEMORY, HostComm::open_lazily}};

const LinkedIn* find_linked_in(std::string_view name) {
  for (const LinkedIn& one : linked_in)
    if (one.name == name && !is_left_out(name)) return &one;
  return nullptr;
}

/// A linked-in backend that is a C table.
struct LinkedTable {
  std::string_view name;
  std::uint32_t devices;  // headrace_comm_devices_v1
};
std::vector<LinkedTable> linked_tables() {
  std::vector<LinkedTable> all;
  for (const std::string_view name : nccl::backend_names())
    all.push_back({name, HEADRACE_COMM_MOVES_CUDA_MEMORY});
  all.push_back({p2p::backend_name, HEADRACE_COMM_MOVES_CUDA_MEMORY});
  all.push_back({oneccl::backend_name, HEADRACE_COMM_MOVES_HOST_MEMORY});
  std::erase_if(all, [](const LinkedTable& one) { return is_left_out(one.name); });
  return all;
}
std::optional<LinkedTable> find_linked_table(std::string_view name) {
  const auto all = linked_tables();
  const auto at = std::ranges::find(all, name, &LinkedTable::name);
  return at == all.end() ? std::nullopt : std::optional(*at);
}
Result<headrace_comm_backend_v1> load_linked_table(std::string_view name) {
  if (name == p2p::backend_name) return p2p::installed_table();
  if (name == oneccl::backend_name) return oneccl::installed_backend().table();
  return nccl::table_of(name);
}

constexpr std::string_view torchcomms_oneccl = "xccl";  // its name there

/// A candidate of `auto`.
choice::Candidate nccl_candidate() {
  return {"nccl", [] { return nccl::table_of("nccl"); }, nccl::hint_names(), nccl::call_hint_names()};
}
choice::Candidate p2p_candidate() {
  std::vector<std::string> hints;
  for (const OptionRow& row : p2p::hint_rows) hints.emplace_back(row.name);
  const auto table = []() -> Result<headrace_comm_backend_v1> { return p2p::installed_table(); };
  return {p2p::backend_name, table, std::move(hints), {"blocks"}};
}

headrace_comm_backend_v1 auto_table() {
  static auto& the = *new choice::Backend(choice::backend_name, installed_choice());
  return the.table();
}

/// On the CPU it is `host`, whose hints do not have the table.
Result<std::shared_ptr<Comm::Core>> open_auto(const CommOptions& given) {
  if (device_of(given).kind != Device::Kind::cpu) return TableComm::open(auto_table(), given);
  CommOptions options = given;
  options.hints.erase("table");
  return HostComm::open(options);
}

/// The backends that this process has registered. They stay to its end.
class Registered {
 public:
  static Registered& of_process() {
    static auto& the = *new Registered;
    return the;
  }
  bool add(const headrace_comm_backend_v1& table) {
    const std::scoped_lock lock(mutex_);
    return tables_.try_emplace(table.name, table).second;
  }
  std::optional<headrace_comm_backend_v1> find(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    const auto at = tables_.find(name);
    return at == tables_.end() ? std::nullopt : std::optional(at->second);
  }
  /// Adds the names of those that move such memory.
  void names(std::set<std::string>& all, std::uint32_t devices = ~0U) {
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, table] : tables_)
      if ((table.devices & devices) != 0) all.insert(name);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, headrace_comm_backend_v1> tables_;
};

std::set<std::string> all_names() {
  std::set<std::string> names;
  for (const LinkedIn& one : linked_in) names.emplace(one.name);
  for (const LinkedTable& one : linked_tables()) names.emplace(one.name);
  std::erase_if(names, [](const std::string& name) { return is_left_out(name); });
  Registered::of_process().names(names);
  names.merge(comm_libraries());
  return names;
}

/// The backend of the Python package, which registers it in its own processes alone.
constexpr std::string_view python_backend = "gloo";

Error unknown(const std::string& name) {
  const std::set<std::string> names = all_names();
  if (name == python_backend && !is_left_out(name))
    return make_error(Code::not_found,
                      "backend {} is a class of Headrace's Python package: open it in Python by "
                      "headrace.new_comm(\"{}\"), or use one of these: {}",
                      name, name, fmt::join(names, ", "));
  const std::vector<std::string_view> views(names.begin(), names.end());
  Error error = make_error(Code::not_found, "there is no backend {}: did you mean {}? There are: {}",
                           name_text(name), nearest_name(name, views), fmt::join(names, ", "));
  if (is_left_out(name))
    error.message +=
        fmt::format(". It is left out of this build: build Headrace with {}=ON", variable_name("comm", name));
  if (is_backend_name(name)) error.message += fmt::format(". {}", where_library_may_lie(name));
  return error;
}

/// Refuses a backend that does not move memory of the communicator's device.
Result<void> check_device(const CommOptions& options, std::uint32_t devices) {
  const bool gpu = device_of(options).kind != Device::Kind::cpu;
  const std::uint32_t needed = gpu ? HEADRACE_COMM_MOVES_CUDA_MEMORY : HEADRACE_COMM_MOVES_HOST_MEMORY;
  if ((devices & needed) != 0) return {};
  std::set<std::string> able;
  for (const LinkedIn& one : linked_in)
    if ((one.devices & needed) != 0) able.emplace(one.name);
  for (const LinkedTable& one : linked_tables())
    if ((one.devices & needed) != 0) able.emplace(one.name);
  std::erase_if(able, [](const std::string& name) { return is_left_out(name); });
  Registered::of_process().names(able, needed);
  return make_error(Code::not_supported,
                    "backend {} does not move memory of {}: use another backend ({}), or open it with device "
                    "\"{}\"",
                    options.backend, options.device, fmt::join(able, ", "), gpu ? "cpu" : "cuda");
}

Result<std::shared_ptr<Comm::Core>> open_table(const headrace_comm_backend_v1& table,
                                               const CommOptions& options) {
  HEADRACE_TRY_VOID(check_device(options, table.devices));
  return TableComm::open(table, options);
}

}  // namespace

choice::Source installed_choice() {
  choice::Source source{
      [] { return cuda::load_driver(); }, {}, [](const std::string& path) { return read_comm_tuning(path); }};
  for (auto& candidate : {p2p_candidate(), nccl_candidate()})
    if (!is_left_out(candidate.name)) source.candidates.push_back(candidate);
  return source;
}

Result<std::shared_ptr<Comm::Core>> open_backend(const CommOptions& given) {
  HEADRACE_TRY_VOID(check_options(given));
  HEADRACE_TRY(options, with_device_number(given));
  if (options.backend == torchcomms_oneccl) options.backend = oneccl::backend_name;
  if (const LinkedIn* const found = find_linked_in(options.backend)) {
    HEADRACE_TRY_VOID(check_device(options, found->devices));
    return found->open(options);
  }
  if (const auto linked = find_linked_table(options.backend)) {
    HEADRACE_TRY_VOID(check_device(options, linked->devices));
    HEADRACE_TRY(table, load_linked_table(options.backend));
    return TableComm::open(table, options);
  }
  if (const auto table = Registered::of_process().find(options.backend)) return open_table(*table, options);
  HEADRACE_TRY(table, load_comm_library(options.backend));
  if (table) return open_table(*table, options);
  return unknown(options.backend);
}

namespace {

std::vector<std::string> device_names(std::uint32_t devices) {
  std::vector<std::string> names;
  if ((devices & HEADRACE_COMM_MOVES_HOST_MEMORY) != 0) names.emplace_back("cpu");
  if ((devices & HEADRACE_COMM_MOVES_CUDA_MEMORY) != 0) names.emplace_back("cuda");
  return names;
}

std::vector<std::string> features_of(const LinkedIn& backend) {
  if (backend.open == open_auto) return {"split", "shrink"};
  if (backend.open == FakeComm::open) return {"split"};
  return {"split", "shrink", "reconfigure", "windows", "tags", "any_source", "set_hints"};
}

/// The entries of a table that may be missing.
std::vector<std::string> features_of(const headrace_comm_backend_v1& table) {
  std::vector<std::string> features;
  const std::pair<const char*, bool> entries[] = {{"split", table.split != nullptr},
                                                  {"shrink", table.shrink != nullptr},
                                                  {"reconfigure", table.reconfigure != nullptr},
                                                  {"set_hints", table.set_hints != nullptr},
                                                  {"streams", table.wait_on != nullptr},
                                                  {"groups", table.group_start != nullptr}};
  for (const auto& [name, there] : entries)
    if (there) features.emplace_back(name);
  return features;
}

CommBackendInfo with_table(CommBackendInfo info, const headrace_comm_backend_v1& table) {
  info.version = table.version;
  info.devices = device_names(table.devices);
  info.features = features_of(table);
  return info;
}

/// Its library may be there and the driver not.
CommBackendInfo look_at_nccl(CommBackendInfo info) {
  nccl::Backend& backend = nccl::installed_backend(info.name);
  info.devices = device_names(HEADRACE_COMM_MOVES_CUDA_MEMORY);
  const auto table = backend.table();
  const auto library = backend.library();
  if (!table || !library) {
    info.refusal = table ? library.error().message : table.error().message;
    return info;
  }
  info = with_table(std::move(info), *table);
  info.from = library->path;
  for (const nccl::Feature& feature : nccl::features(*library))
    if (feature.there) info.features.emplace_back(feature.symbol);
  if (library->version >= nccl::version_of_float8) info.features.emplace_back("float8");
  if (const auto driver = backend.driver(); !driver) info.refusal = driver.error().message;
  return info;
}

CommBackendInfo look_at_p2p(CommBackendInfo info) {
  info = with_table(std::move(info), p2p::installed_table());
  info.from = "linked in";
  const gpu::GpuSource gpus = gpu::GpuSource::installed();
  const auto driver = gpus.driver();
  const auto kernels = gpus.kernels();
  if (!driver) {
    info.refusal = driver.error().message;
  } else if (!kernels) {
    info.refusal = kernels.error().message;
  }
  return info;
}

CommBackendInfo look_at_oneccl(CommBackendInfo info) {
  info.devices = device_names(HEADRACE_COMM_MOVES_HOST_MEMORY);
  const auto table = oneccl::installed_backend().table();
  const auto library = oneccl::installed_backend().library();
  if (!table || !library) {
    info.refusal = table ? library.error().message : table.error().message;
    return info;
  }
  info = with_table(std::move(info), *table);
  info.from = library->path;
  return info;
}

CommBackendInfo look_at_linked_table(CommBackendInfo info) {
  if (info.name == p2p::backend_name) return look_at_p2p(std::move(info));
  if (info.name == oneccl::backend_name) return look_at_oneccl(std::move(info));
  return look_at_nccl(std::move(info));
}

}  // namespace

CommBackendInfo look_at_backend(const std::string& name) {
  CommBackendInfo info;
  info.name = name;
  if (const LinkedIn* const found = find_linked_in(name)) {
    info.version = HEADRACE_VERSION;
    info.from = "linked in";
    info.devices = device_names(found->devices);
    info.features = features_of(*found);
    return info;
  }
  if (find_linked_table(name)) return look_at_linked_table(std::move(info));
  if (const auto table = Registered::of_process().find(name)) {
    info.from = "registered";
    return with_table(std::move(info), *table);
  }
  std::string path;
  const auto table = load_comm_library(name, &path);
  info.from = path;
  if (table && *table) return with_table(std::move(info), **table);
  info.refusal = table ? where_library_may_lie(name) : table.error().message;
  return info;
}

}  // namespace headrace::collectives

namespace headrace {

std::vector<std::string> list_comm_backends() {
  const std::set<std::string> names = collectives::all_names();
  return {names.begin(), names.end()};
}

std::vector<CommBackendInfo> survey_comm_backends() {
  std::vector<CommBackendInfo> all;
  for (const std::string& name : list_comm_backends()) all.push_back(collectives::look_at_backend(name));
  return all;
}

bool is_comm_backend_left_out(std::string_view name) { return collectives::is_left_out(name); }

Result<void> register_comm_backend(const headrace_comm_backend_v1* table) {
  HEADRACE_TRY(checked, collectives::check_comm_table(table, {}));
  if (collectives::find_linked_in(checked.name) == nullptr && !collectives::find_linked_table(checked.name) &&
      collectives::Registered::of_process().add(checked))
    return {};
  return make_error(Code::invalid_argument,
                    "there is a backend \"{}\" already: register this one under another name", checked.name);
}

}  // namespace headrace
