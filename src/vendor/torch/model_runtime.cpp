// SPDX-License-Identifier: Apache-2.0
#include "vendor/torch/model_runtime.hpp"

#include <nlohmann/json.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace headrace {
namespace {

constexpr const char* library_name = "libheadrace_torch.so";
constexpr const char* note_name = "libheadrace_torch.json";

/// The folder of the library or program that contains this code.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&check_model_runtime), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
}

Result<std::filesystem::path> find_library(const std::string& path) {
  std::error_code ignored;
  if (!path.empty()) {
    if (std::filesystem::exists(path, ignored)) return std::filesystem::path(path);
    return make_error(Code::not_supported, "there is no {} (option model.library): name the file {}", path,
                      library_name);
  }
  const std::filesystem::path folder = own_folder();
  // Programs that link the rooms themselves (tests, benchmarks) are beside the folder `lib`.
  for (const auto& candidate :
       {folder / library_name, folder / "lib" / library_name, folder.parent_path() / "lib" / library_name})
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  return make_error(
      Code::not_supported,
      "models need {}, which is not in {}: this Headrace was built where no torch was installed. Install "
      "torch, then build again (pip install --no-build-isolation . in its sources, or make build)",
      library_name, folder.string());
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return make_error(Code::not_found, "{} cannot be read", path.string());
  return text.str();
}

/// `__version__` of the torch in that folder; empty if there is none.
std::string version_in(const std::filesystem::path& folder) {
  const Result<std::string> text = read_file(folder / "version.py");
  if (!text) return {};
  const std::size_t key = text->find("__version__ = '");
  if (key == std::string::npos) return {};
  const std::size_t begin = text->find('\'', key) + 1;
  return text->substr(begin, text->find('\'', begin) - begin);
}

Error other_torch(const TorchBuildNote& note, const std::string& found) {
  return make_error(
      Code::not_supported,
      "this Headrace was built for torch {} ({}), and torch {} is installed: install that one (pip install "
      "torch=={}), or build Headrace against this one (pip install --no-build-isolation .)",
      note.torch, note.accelerator, found, note.torch.substr(0, note.torch.find('+')));
}

/// The dynamic linker's reason, with the values of the build note.
Error cannot_load(const std::filesystem::path& library, const TorchBuildNote& note, std::string_view reason) {
  if (note.torch.empty())
    return make_error(Code::not_supported, "{} does not load: {}", library.string(), reason);
  return make_error(
      Code::not_supported,
      "{} does not load: {}. It was built for torch {} ({}): install that one (pip install torch=={}), or "
      "build Headrace against the one that is there (pip install --no-build-isolation .)",
      library.string(), reason, note.torch, note.accelerator, note.torch.substr(0, note.torch.find('+')));
}

}  // namespace

Result<TorchBuildNote> TorchBuildNote::parse(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  TorchBuildNote note;
  const auto take = [&](const char* key, std::string& into) {
    const auto found = parsed.find(key);
    if (found == parsed.end() || !found->is_string()) return false;
    into = found->get<std::string>();
    return true;
  };
  if (!parsed.is_object() || !take("torch", note.torch) || !take("accelerator", note.accelerator) ||
      !take("folder", note.folder))
    return make_error(Code::corrupt, "{} lacks torch, accelerator or folder", note_name);
  return note;
}

bool same_torch_release(std::string_view one, std::string_view other) {
  const auto release = [](std::string_view version) {
    const std::size_t minor = version.find('.');
    return version.substr(0, version.find('.', minor == std::string_view::npos ? minor : minor + 1));
  };
  return release(one) == release(other);
}

Error RuntimeText::error(std::int32_t code) const {
  const std::string_view text = view();
  return {static_cast<Code>(code),
          text.empty() ? std::string(code_name(static_cast<Code>(code))) : std::string(text)};
}

Result<void> check_model_runtime(const headrace_model_runtime_v1* table) {
  if (table == nullptr) return make_error(Code::corrupt, "its table is missing");
  if (table->abi_major != HEADRACE_MODEL_RUNTIME_ABI_MAJOR ||
      table->struct_size < HEADRACE_MODEL_RUNTIME_V1_SIZE)
    return make_error(
        Code::not_supported,
        "its table has version {} and {} bytes, and version {} with at least {} bytes is needed: build both "
        "from the same sources",
        table->abi_major, table->struct_size, HEADRACE_MODEL_RUNTIME_ABI_MAJOR,
        HEADRACE_MODEL_RUNTIME_V1_SIZE);
  const std::array<const void*, 14> entries{
      reinterpret_cast<const void*>(table->info),        reinterpret_cast<const void*>(table->device_info),
      reinterpret_cast<const void*>(table->set_threads), reinterpret_cast<const void*>(table->open),
      reinterpret_cast<const void*>(table->close),       reinterpret_cast<const void*>(table->call_spec),
      reinterpret_cast<const void*>(table->bind),        reinterpret_cast<const void*>(table->run),
      reinterpret_cast<const void*>(table->release),     reinterpret_cast<const void*>(table->constants),
      reinterpret_cast<const void*>(table->allocate),    reinterpret_cast<const void*>(table->copy),
      reinterpret_cast<const void*>(table->synchronize), reinterpret_cast<const void*>(table->check_device)};
  if (table->replace_constants == nullptr || std::ranges::count(entries, nullptr) > 0)
    return make_error(Code::corrupt, "an entry of its table is missing");
  return {};
}

Result<ModelRuntime> load_model_runtime(const std::string& path) {
  HEADRACE_TRY(library, find_library(path));
  TorchBuildNote note;
  if (const auto text = read_file(library.parent_path() / note_name)) {
    HEADRACE_TRY(parsed, TorchBuildNote::parse(*text));
    note = std::move(parsed);
    // Checked before loading: a library of another release fails with the name of a missing symbol, or does
    // not fail.
    const std::string there = version_in(note.folder);
    if (!there.empty() && !same_torch_release(note.torch, there)) return other_torch(note, there);
  }
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return cannot_load(library, note, ::dlerror());
  const auto entry =
      reinterpret_cast<headrace_model_runtime_v1_function>(::dlsym(handle, HEADRACE_MODEL_RUNTIME_SYMBOL));
  if (entry == nullptr)
    return make_error(Code::corrupt, "{} is not a model runtime: it has no {}", library.string(),
                      HEADRACE_MODEL_RUNTIME_SYMBOL);
  const headrace_model_runtime_v1* const table = entry();
  if (auto sound = check_model_runtime(table); !sound)
    return std::move(sound).error().within(library.string());
  headrace_runtime_info_v1 info{};
  info.struct_size = sizeof info;
  table->info(&info);
  // If the process has already loaded another torch (Python's), the linker has used that one.
  if (!same_torch_release(info.built_for, info.found))
    return other_torch({info.built_for, info.built_accelerator, {}}, info.found);
  return ModelRuntime{table, library.string()};
}

}  // namespace headrace
