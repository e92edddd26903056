// SPDX-License-Identifier: Apache-2.0
#include "oneccl/backend.hpp"

#include "base/comm_entries.hpp"
#include "base/options.hpp"
#include "base/random.hpp"
#include "oneccl/communicator.hpp"

#include <unistd.h>

#include <array>
#include <memory>

namespace headrace::oneccl {
namespace {

using comm_border::guarded;
using Entries = comm_border::Entries<Communicator>;

constexpr std::array option_rows{OptionRow{
    "library", "", "text",
    "Path of the library; empty: the one that the process has loaded, else that of the pip package, "
    "else the one that the loader finds"}};

Result<void> open_comm(Backend& backend, const headrace_comm_setup_v1& setup, void** comm) {
  HEADRACE_TRY(library, backend.library());
  return Entries::give(Communicator::open({std::move(library), backend.process()}, setup), comm);
}

std::int32_t open(void* context, const headrace_comm_setup_v1* setup, void** comm, headrace_text_v1* why) {
  return guarded(why, [&] { return open_comm(*static_cast<Backend*>(context), *setup, comm); });
}

void abort(void* comm, const char*, std::size_t) {
  guarded(nullptr, [&]() -> Result<void> {
    Entries::of(comm).abort();
    return {};
  });
}

std::int32_t split(void* comm, const std::int32_t*, std::uint64_t, const headrace_comm_setup_v1* setup,
                   void** part, headrace_text_v1* why) {
  if (setup == nullptr) return HEADRACE_OK;  // this rank is in no group
  return guarded(why, [&] { return Entries::give(Entries::of(comm).part(*setup), part); });
}

std::int32_t shrink(void* comm, const std::int32_t*, std::uint64_t, const headrace_comm_setup_v1* setup,
                    void** part, headrace_text_v1* why) {
  return guarded(why, [&] { return Entries::give(Entries::of(comm).part(*setup), part); });
}

/// A fork has the random number of its parent, and another pid.
std::string process_token() {
  static const std::uint64_t number = random_u64();
  return fmt::format("{:016x}/{}", number, ::getpid());
}

Result<Library> load_installed() {
  HEADRACE_TRY(options, backend_options());
  HEADRACE_TRY(path, options.text("library"));
  return load_library(path);
}

}  // namespace

Result<Library> Backend::library() {
  const std::scoped_lock lock(mutex_);
  if (!library_) {
    HEADRACE_TRY(loaded, source_.library());
    library_ = std::move(loaded);
  }
  return *library_;
}

Result<headrace_comm_backend_v1> Backend::table() {
  HEADRACE_TRY_VOID(library());
  headrace_comm_backend_v1 table = Entries::table(name_.c_str(), library_->version.c_str(), this);
  table.devices = HEADRACE_COMM_MOVES_HOST_MEMORY;
  table.open = open;
  table.abort = abort;
  table.split = split;
  table.shrink = shrink;
  return table;
}

Backend& installed_backend() {
  static auto& the = *new Backend(backend_name, {load_installed, process_token});
  return the;
}

Result<Options> backend_options() {
  OptionSources sources;
  sources.scope = backend_name;
  return Options::resolve(option_rows, sources);
}

}  // namespace headrace::oneccl
