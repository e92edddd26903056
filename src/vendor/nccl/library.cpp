// SPDX-License-Identifier: Apache-2.0
#include "vendor/nccl/library.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace headrace::nccl {
namespace {

namespace fs = std::filesystem;

/// The library with its path, opened.
struct Opened {
  void* handle;
  std::string path;
};

std::string loader_says() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

std::string path_of(void* handle, std::string otherwise) {
  const void* const inside = ::dlsym(handle, "ncclGetVersion");
  Dl_info info{};
  if (inside != nullptr && ::dladdr(inside, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
  return otherwise;
}

/// The pip package's file, if this code lies in a folder of packages that has it.
std::string in_packages(const Flavour& flavour) {
  Dl_info info{};
  if (*flavour.package_folder == '\0') return {};
  if (::dladdr(reinterpret_cast<const void*>(&load_library), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  fs::path folder = fs::weakly_canonical(info.dli_fname, ignored).parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path file = folder / flavour.package_folder / flavour.file;
    if (fs::exists(file, ignored)) return file.string();
  }
  return {};
}

// Local: its symbols serve our table only. A library that is loaded already keeps its scope.
void* open_file(const char* path, int flags = 0) { return ::dlopen(path, RTLD_NOW | RTLD_LOCAL | flags); }

Result<Opened> open_given(const Flavour& flavour, const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    return make_error(Code::not_found, "option {}.library names {}, which is not there: correct it",
                      flavour.name, path);
  if (void* const handle = open_file(path.c_str())) return Opened{handle, path};
  return make_error(Code::not_supported, "{} does not load: {}", path, loader_says());
}

Result<Opened> open_library(const Flavour& flavour, const std::string& path) {
  if (!path.empty()) return open_given(flavour, path);
  if (flavour.only_by_path)
    return make_error(
        Code::not_supported,
        "the file of {} has the name of another library ({}): name its path by option {}.library",
        flavour.name, flavour.file, flavour.name);
  if (void* const handle = open_file(flavour.file, RTLD_NOLOAD)) return Opened{handle, flavour.file};
  if (const std::string file = in_packages(flavour); !file.empty()) return open_given(flavour, file);
  if (void* const handle = open_file(flavour.file)) return Opened{handle, flavour.file};
  return make_error(
      Code::not_supported,
      "no {}: {} could not be loaded ({}). Install it (pip install nvidia-nccl-cu13), or name its "
      "path by option {}.library",
      flavour.name, flavour.file, loader_says(), flavour.name);
}

Result<void> bind(const Opened& opened, const char* symbol, void** function) {
  *function = ::dlsym(opened.handle, symbol);
  if (*function != nullptr) return {};
  return make_error(Code::not_supported, "{} has no function {}: NCCL {} or newer is needed", opened.path,
                    symbol, version_text(oldest_version));
}

Result<Table> bind_table(const Opened& opened) {
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
  opened.path = path_of(opened.handle, std::move(opened.path));
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
