// SPDX-License-Identifier: Apache-2.0
#include "nccl/backend.hpp"

#include "base/comm_entries.hpp"
#include "base/options.hpp"
#include "nccl/communicator.hpp"
#include "vendor/hip/runtime.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <utility>

namespace headrace::nccl {
namespace {

using comm_border::guarded;

constexpr std::array option_rows{OptionRow{
    "library", "", "text",
    "Path of the library; empty: the one that the process has loaded, else that of the pip package, "
    "else the one that the loader finds"}};

using Entries = comm_border::Entries<Communicator>;

Communicator& communicator(void* comm) { return Entries::of(comm); }

Result<void> open_comm(Backend& backend, const headrace_comm_setup_v1& setup, void** comm) {
  HEADRACE_TRY(library, backend.library());
  HEADRACE_TRY(driver, backend.driver());
  return Entries::give(Communicator::open({driver, std::move(library)}, setup), comm);
}

std::int32_t open(void* context, const headrace_comm_setup_v1* setup, void** comm, headrace_text_v1* why) {
  return guarded(why, [&] { return open_comm(*static_cast<Backend*>(context), *setup, comm); });
}

void abort(void* comm, const char*, std::size_t) {
  guarded(nullptr, [&]() -> Result<void> {
    communicator(comm).abort();
    return {};
  });
}

std::int32_t split(void* comm, const std::int32_t* ranks, std::uint64_t count,
                   const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why) {
  return guarded(why, [&] {
    return Entries::give(communicator(comm).split({ranks, static_cast<std::size_t>(count)}, setup), part);
  });
}

std::int32_t shrink(void* comm, const std::int32_t* excluded, std::uint64_t count,
                    const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why) {
  return guarded(why, [&] {
    return Entries::give(communicator(comm).shrink({excluded, static_cast<std::size_t>(count)}, *setup),
                         part);
  });
}

std::int32_t wait_on(void* comm, std::uint64_t work, void* stream, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).wait_on(work, static_cast<cuda::Stream>(stream)); });
}

std::int32_t tensor_register(void* comm, const headrace_comm_elements_v1* tensor, std::int64_t,
                             std::uint64_t* registration, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(number, communicator(comm).tensor_register(*tensor));
    *registration = number;
    return {};
  });
}

std::int32_t tensor_deregister(void* comm, std::uint64_t registration, std::int64_t, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).tensor_deregister(registration); });
}

std::int32_t suspend(void* comm, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).suspend(comm_border::deadline_of(timeout_ns)); });
}

std::int32_t resume(void* comm, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).resume(comm_border::deadline_of(timeout_ns)); });
}

std::int32_t init_handle(void* comm, const headrace_sink_v1* handle, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(mine, communicator(comm).handle());
    const std::string bytes = mine.encode();
    handle->append(handle->context, bytes.data(), bytes.size());
    return {};
  });
}

std::int32_t reconfigure(void* comm, const char*, const headrace_bytes_v1* handles,
                         const headrace_comm_setup_v1* setup, void** made, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    std::vector<RankHandle> ranks;
    for (int i = 0; i < setup->size; ++i) {
      HEADRACE_TRY(rank, RankHandle::decode({static_cast<const char*>(handles[i].data), handles[i].length}));
      ranks.push_back(rank);
    }
    return Entries::give(communicator(comm).reconfigure(ranks, *setup), made);
  });
}

std::int32_t window_open(void* comm, headrace_comm_window_v1* window, std::int64_t timeout_ns,
                         headrace_text_v1* why) {
  return guarded(
      why, [&] { return communicator(comm).window_open(*window, comm_border::deadline_of(timeout_ns)); });
}

std::int32_t window_close(void* comm, std::uint64_t window, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(
      why, [&] { return communicator(comm).window_close(window, comm_border::deadline_of(timeout_ns)); });
}

std::int32_t window_issue(void* comm, const headrace_comm_window_call_v1* call, std::uint64_t work,
                          headrace_text_v1* why) {
  return Entries::begun(why, [&] { return communicator(comm).window_issue(*call, work); });
}

void group_start(void* comm) {
  guarded(nullptr, [&]() -> Result<void> {
    communicator(comm).group_start();
    return {};
  });
}

std::int32_t group_end(void* comm, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).group_end(); });
}

/// The backends over installed libraries, each made at its first use. They stay.
class Installed {
 public:
  static Installed& of_process() {
    static auto& the = *new Installed;
    return the;
  }
  Backend& of(const Flavour& flavour) {
    const std::scoped_lock lock(mutex_);
    auto& backend = backends_[flavour.name];
    if (!backend)
      backend = std::make_unique<Backend>(flavour.name,
                                          Source{flavour.on_hip ? hip::load_runtime : cuda::load_driver,
                                                 [&flavour] { return load(flavour); }});
    return *backend;
  }

 private:
  static Result<Library> load(const Flavour& flavour) {
    HEADRACE_TRY(options, backend_options(flavour.name));
    HEADRACE_TRY(path, options.text("library"));
    return load_library(flavour, path);
  }

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
};

}  // namespace

Result<Library> Backend::library() {
  const std::scoped_lock lock(mutex_);
  if (!library_) {
    HEADRACE_TRY(loaded, source_.library());
    version_ = version_text(loaded.version);
    library_ = std::move(loaded);
  }
  return *library_;
}

Result<cuda::DriverTable> Backend::driver() {
  const std::scoped_lock lock(mutex_);
  if (!driver_) {
    HEADRACE_TRY(loaded, source_.driver());
    driver_ = loaded;
  }
  return *driver_;
}

Result<headrace_comm_backend_v1> Backend::table() {
  HEADRACE_TRY_VOID(library());
  headrace_comm_backend_v1 table = Entries::table(name_.c_str(), version_.c_str(), this);
  table.open = open;
  table.abort = abort;
  table.split = split;
  table.shrink = shrink;
  table.wait_on = wait_on;
  table.group_start = group_start;
  table.group_end = group_end;
  table.tensor_register = tensor_register;
  table.tensor_deregister = tensor_deregister;
  table.init_handle = init_handle;
  table.reconfigure = reconfigure;
  table.suspend = suspend;
  table.resume = resume;
  table.window_open = window_open;
  table.window_close = window_close;
  table.window_issue = window_issue;
  return table;
}

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const Flavour& flavour : flavours) names.emplace_back(flavour.name);
  return names;
}

Backend& installed_backend(std::string_view name) { return Installed::of_process().of(*find_flavour(name)); }

Result<headrace_comm_backend_v1> table_of(std::string_view name) { return installed_backend(name).table(); }

std::vector<std::string> hint_names() {
  std::vector<std::string> hints = config_names();
  hints.emplace_back("is_high_priority_stream");
  return hints;
}

std::vector<std::string> call_hint_names() { return call_config_names(); }

Result<Options> backend_options(std::string_view name) {
  OptionSources sources;
  sources.scope = name;
  return Options::resolve(option_rows, sources);
}

}  // namespace headrace::nccl
