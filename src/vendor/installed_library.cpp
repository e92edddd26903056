// SPDX-License-Identifier: Apache-2.0
#include "vendor/installed_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

namespace headrace {
namespace {

namespace fs = std::filesystem;

std::string why_not_loaded() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

/// The pip package's file, if this code lies in a folder of packages that has it.
std::string in_packages(const InstalledLibrary& library) {
  Dl_info info{};
  if (*library.folder == '\0') return {};
  if (::dladdr(reinterpret_cast<const void*>(&open_installed), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  fs::path folder = fs::weakly_canonical(info.dli_fname, ignored).parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path file = folder / library.folder / library.file;
    if (fs::exists(file, ignored)) return file.string();
  }
  return {};
}

// Local: its symbols serve our table only. A library that is loaded already keeps its scope.
void* open_file(const char* path, int flags = 0) { return ::dlopen(path, RTLD_NOW | RTLD_LOCAL | flags); }

OpenedLibrary with_path(void* handle, const char* otherwise) {
  const link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && *map->l_name != '\0')
    return {handle, map->l_name};
  return {handle, otherwise};
}

Result<OpenedLibrary> open_given(const InstalledLibrary& library, const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    return make_error(Code::not_found, "option {}.library names {}, which is not there: correct it",
                      library.name, path);
  if (void* const handle = open_file(path.c_str())) return with_path(handle, path.c_str());
  return make_error(Code::not_supported, "{} does not load: {}", path, why_not_loaded());
}

}  // namespace

Result<OpenedLibrary> open_installed(const InstalledLibrary& library, const std::string& path) {
  if (!path.empty()) return open_given(library, path);
  if (void* const handle = open_file(library.file, RTLD_NOLOAD)) return with_path(handle, library.file);
  if (const std::string file = in_packages(library); !file.empty()) return open_given(library, file);
  if (void* const handle = open_file(library.file)) return with_path(handle, library.file);
  return make_error(
      Code::not_supported,
      "no {}: {} could not be loaded ({}). Install it ({}), or name its path by option {}.library",
      library.name, library.file, why_not_loaded(), library.install, library.name);
}

}  // namespace headrace
