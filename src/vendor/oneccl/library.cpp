// SPDX-License-Identifier: Apache-2.0
#include "vendor/oneccl/library.hpp"

#include "vendor/installed_library.hpp"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <utility>

namespace headrace::oneccl {
namespace {

// The second package has libccl.so.1 without SYCL, which takes the place of the first one's.
constexpr const char* how_to_install = "pip install --no-deps oneccl, then pip install --no-deps oneccl-cpu";
// In a virtual environment the package's files lie in its folder lib, which is above Headrace's.
constexpr InstalledLibrary installed{"oneccl", "libccl.so.2", ".", how_to_install};

Result<void> bind(const OpenedLibrary& opened, const char* symbol, void** function) {
  *function = ::dlsym(opened.handle, symbol);
  if (*function != nullptr) return {};
  return make_error(Code::not_supported, "{} has no function {}: oneCCL 2022.2 or newer is needed",
                    opened.path, symbol);
}

Result<Table> bind_table(const OpenedLibrary& opened) {
  Table table;
#define HEADRACE_ONECCL_BIND(result, member, symbol, ...) \
  HEADRACE_TRY_VOID(bind(opened, symbol, reinterpret_cast<void**>(&table.member)));
  HEADRACE_ONECCL_FUNCTIONS(HEADRACE_ONECCL_BIND)
#undef HEADRACE_ONECCL_BIND
  return table;
}

bool is_loaded(const char* file) { return ::dlopen(file, RTLD_NOW | RTLD_NOLOAD) != nullptr; }

/// oneCCL opens it by its bare name, and then gets what is loaded.
Result<void> load_libfabric(const std::string& library) {
  const std::filesystem::path folder = std::filesystem::path(library).parent_path();
  const std::array<std::string, 3> places{"libfabric.so.1", folder / "libfabric.so.1",
                                          folder / "mpich" / "libfabric.so.1"};
  for (const std::string& place : places)
    if (::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return {};
  return make_error(Code::not_supported,
                    "oneCCL needs libfabric.so.1, and the loader does not find it, nor does it lie beside "
                    "{}: install libfabric1 of Debian, or pip install mpich, which has one",
                    library);
}

/// Its parts are libraries that it loads at its first call.
Result<void> check_parts(const Library& library, Outcome outcome) {
  if (is_loaded("libccl_legacy.so"))
    return make_error(Code::not_supported,
                      "{} has loaded its part for XPUs, and Headrace serves host memory by its part "
                      "libccl_legacy_cpu.so: set CCL_PLUGIN=ONECCL_LEGACY_CPU in the environment",
                      library.path);
  if (outcome == Outcome::success) return {};
  Error error = library_error(library, outcome, "load libccl_legacy_cpu.so");
  error.code = Code::not_supported;
  error.message += fmt::format(". Install it ({})", how_to_install);
  return error;
}

}  // namespace

Result<Library> load_library(const std::string& path) {
  HEADRACE_TRY(opened, open_installed(installed, path));
  HEADRACE_TRY(table, bind_table(opened));
  HEADRACE_TRY_VOID(load_libfabric(opened.path));
  Library library{table, {}, std::move(opened.path)};
  int version = 0;
  HEADRACE_TRY_VOID(check_parts(library, table.get_version(&version)));
  library.version = fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
  return library;
}

Error library_error(const Library& library, Outcome outcome, std::string_view what) {
  const bool refused = outcome == Outcome::invalid_argument || outcome == Outcome::invalid_usage;
  const char* const why = library.table.get_last_error(nullptr);
  return make_error(refused ? Code::invalid_argument : Code::backend_failed, "{}: oneCCL says {} ({})", what,
                    why == nullptr || *why == '\0' ? "nothing" : why, static_cast<int>(outcome));
}

}  // namespace headrace::oneccl
