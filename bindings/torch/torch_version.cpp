// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/torch_version.hpp"

#include <ATen/Context.h>
#include <ATen/Version.h>

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <sstream>

// Set by the build, from the Python package whose headers were compiled.
#ifndef HEADRACE_TORCH_VERSION
#error "HEADRACE_TORCH_VERSION and HEADRACE_TORCH_ACCELERATOR are set by cmake/torch.cmake"
#endif

namespace headrace::torch_runtime {
namespace {

/// torch's folder, derived from the path of its loaded library: <folder>/lib/libtorch_cpu.so.
std::filesystem::path torch_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&at::show_config), &info) == 0 || info.dli_fname == nullptr)
    return {};
  return std::filesystem::path(info.dli_fname).parent_path().parent_path();
}

/// The value of `name = 'value'` or `name: type = 'value'` in torch/version.py; empty for None.
std::string python_value(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.find_first_of(" :=", name.size()) != name.size()) continue;
    const std::size_t begin = line.find('\'', line.find('='));
    const std::size_t end = line.rfind('\'');
    if (begin == std::string::npos || end <= begin) return {};
    return line.substr(begin + 1, end - begin - 1);
  }
  return {};
}

/// The version that the library contains since its own build: "2.13.0", without "+cpu".
std::string version_in_library() {
  const std::string config = at::show_config();
  constexpr std::string_view key = "TORCH_VERSION=";
  const std::size_t begin = config.find(key);
  if (begin == std::string::npos) return "unknown";
  return config.substr(begin + key.size(), config.find_first_of(", \n", begin) - begin - key.size());
}

TorchVersions read_versions() {
  TorchVersions versions{HEADRACE_TORCH_VERSION, HEADRACE_TORCH_ACCELERATOR, "", "cpu"};
  std::ostringstream text;
  text << std::ifstream(torch_folder() / "version.py").rdbuf();
  versions.found = python_value(text.str(), "__version__");
  if (versions.found.empty()) {  // a libtorch without Python
    versions.found = version_in_library();
    versions.found_accelerator = at::hasHIP() ? "rocm" : at::hasCUDA() ? "cuda" : "cpu";
  } else if (!python_value(text.str(), "hip").empty()) {
    versions.found_accelerator = "rocm";
  } else if (!python_value(text.str(), "cuda").empty()) {
    versions.found_accelerator = "cuda";
  }
  return versions;
}

}  // namespace

const TorchVersions& torch_versions() {
  static const TorchVersions versions = read_versions();
  return versions;
}

}  // namespace headrace::torch_runtime
