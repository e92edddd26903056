// SPDX-License-Identifier: Apache-2.0
#include "vendor/nccl/library.hpp"

#include "vendor/installed_library.hpp"

#include <dlfcn.h>

#include <utility>

namespace headrace::nccl {
namespace {

Result<OpenedLibrary> open_library(const Flavour& flavour, const std::string& path) {
  if (path.empty() && flavour.only_by_path)
    return make_error(
        Code::not_supported,
        "the file of {} has the name of another library ({}): name its path by option {}.library",
        flavour.name, flavour.file, flavour.name);
  return open_installed({flavour.name, flavour.file, flavour.package_folder, flavour.install}, path);
}

Result<void> bind(const OpenedLibrary& opened, const char* symbol, void** function) {
  *function = ::dlsym(opened.handle, symbol);
  if (*function != nullptr) return {};
  return make_error(Code::not_supported, "{} has no function {}: NCCL {} or newer is needed", opened.path,
                    symbol, version_text(oldest_version));
}

Result<Table> bind_table(const OpenedLibrary& opened) {
  Table table;
#define HEADRACE_NCCL_BIND(result, member, symbol, ...) \
  HEADRACE_TRY_VOID(bind(opened, symbol, reinterpret_cast<void**>(&table.member)));
  HEADRACE_NCCL_FUNCTIONS(HEADRACE_NCCL_BIND)
#undef HEADRACE_NCCL_BIND
#define HEADRACE_NCCL_BIND(result, member, symbol, ...) \
  table.member = reinterpret_cast<decltype(table.member)>(::dlsym(opened.handle, symbol));
  HEADRACE_NCCL_LATER_FUNCTIONS(HEADRACE_NCCL_BIND)
#undef HEADRACE_NCCL_BIND
  return table;
}

Code code_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::invalid_argument:
    case Outcome::invalid_usage:
      return Code::invalid_argument;
    case Outcome::remote_error:
      return Code::peer_lost;
    case Outcome::timeout:
      return Code::timed_out;
    default:
      return Code::backend_failed;
  }
}

}  // namespace

const Flavour* find_flavour(std::string_view name) {
  for (const Flavour& flavour : flavours)
    if (flavour.name == name) return &flavour;
  return nullptr;
}

Result<Library> load_library(const Flavour& flavour, const std::string& path) {
  HEADRACE_TRY(opened, open_library(flavour, path));
  HEADRACE_TRY(table, bind_table(opened));
  Library library{table, 0, std::move(opened.path)};
  if (const Outcome outcome = table.get_version(&library.version); outcome != Outcome::success)
    return library_error(library, nullptr, outcome, "ask for its version");
  if (library.version < oldest_version)
    return make_error(Code::not_supported, "{} is version {}, and {} or newer is needed", library.path,
                      version_text(library.version), version_text(oldest_version));
  return library;
}

std::string version_text(int version) {
  if (version < 10'000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

std::vector<Feature> features(const Library& library) {
  std::vector<Feature> all;
#define HEADRACE_NCCL_FEATURE(result, member, symbol, since, ...) \
  all.push_back({symbol, since, library.table.member != nullptr});
  HEADRACE_NCCL_LATER_FUNCTIONS(HEADRACE_NCCL_FEATURE)
#undef HEADRACE_NCCL_FEATURE
  return all;
}

Error needs_version(const Library& library, std::string_view what, int since) {
  return make_error(Code::not_supported, "{} needs NCCL {}, and {} is {}", what, version_text(since),
                    library.path, version_text(library.version));
}

Error library_error(const Library& library, Comm comm, Outcome outcome, std::string_view what) {
  Error error = make_error(code_of(outcome), "{}: {} ({})", what, library.table.get_error_string(outcome),
                           static_cast<int>(outcome));
  const char* const more = library.table.get_last_error(comm);
  if (more != nullptr && *more != '\0') error.message += fmt::format(": {}", more);
  return error;
}

}  // namespace headrace::nccl
