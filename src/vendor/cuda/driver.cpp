// SPDX-License-Identifier: Apache-2.0
#include "vendor/cuda/driver.hpp"

#include <dlfcn.h>

namespace headrace::cuda {
namespace {

/// The driver's own dlsym: finds a function as programs built for CUDA `version` know it.
using GetFunction = Outcome (*)(const char* name, void** function, int version, std::uint64_t flags,
                                int* answer);

Outcome version_of(SymbolLookup lookup, int& version) {
  const auto ask = reinterpret_cast<Outcome (*)(int*)>(lookup("cuDriverGetVersion"));
  return ask == nullptr ? Outcome::not_found : ask(&version);
}

Error too_old(int version) {
  return make_error(
      Code::not_supported,
      "the NVIDIA driver serves CUDA {}, and {} or newer is needed: install driver 570 or newer",
      version_text(version), version_text(oldest_driver));
}

Result<void> bind(GetFunction get, int version, const char* name, void** function) {
  int answer = 0;
  const Outcome outcome = get(name, function, oldest_driver, 0, &answer);
  if (outcome == Outcome::success && *function != nullptr) return {};
  return make_error(Code::not_supported,
                    "the NVIDIA driver (CUDA {}) has no function {}: install driver 570 or newer",
                    version_text(version), name);
}

Result<void> start(const DriverTable& table) {
  const Outcome outcome = table.init(0);
  int count = 0;
  if (outcome == Outcome::success) HEADRACE_CUDA_TRY(table, table.device_get_count(&count), "count the GPUs");
  if (outcome == Outcome::no_device || (outcome == Outcome::success && count == 0))
    return make_error(
        Code::not_supported,
        "the NVIDIA driver finds no GPU: CUDA_VISIBLE_DEVICES may hide them, or the container was "
        "started without them");
  if (outcome != Outcome::success)
    return Error{Code::backend_failed,
                 fmt::format("the NVIDIA driver does not start: {}", outcome_text(table, outcome))};
  return {};
}

void* symbol_of_library(const char* name) {
  // dlopen counts its calls: load_driver keeps this handle open for the life of the process.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const address = ::dlsym(library, name);
  ::dlclose(library);
  return address;
}

}  // namespace

Result<DriverTable> load_driver() {
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* const reason = ::dlerror();
    return make_error(
        Code::not_supported,
        "no NVIDIA driver: libcuda.so.1 could not be loaded ({}). Install the driver (570 or newer); in "
        "a container, start it with GPUs",
        reason == nullptr ? "no reason given" : reason);
  }
  return bind_driver(&symbol_of_library);
}

Result<DriverTable> bind_driver(SymbolLookup lookup) {
  int version = 0;
  const Outcome asked = version_of(lookup, version);
  if (asked != Outcome::success)
    return make_error(Code::backend_failed,
                      "the NVIDIA driver does not return its version (cuDriverGetVersion: {})",
                      static_cast<int>(asked));
  if (version < oldest_driver) return too_old(version);
  const auto get = reinterpret_cast<GetFunction>(lookup("cuGetProcAddress_v2"));
  if (get == nullptr)
    return make_error(
        Code::not_supported,
        "the NVIDIA driver (CUDA {}) has no function cuGetProcAddress_v2: install driver 570 or newer",
        version_text(version));
  DriverTable table;
#define HEADRACE_CUDA_BIND(member, symbol, ...) \
  HEADRACE_TRY_VOID(bind(get, version, symbol, reinterpret_cast<void**>(&table.member)));
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_CUDA_BIND)
#undef HEADRACE_CUDA_BIND
  HEADRACE_TRY_VOID(start(table));
  return table;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string outcome_text(const DriverTable& driver, Outcome outcome) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (driver.get_error_name(outcome, &name) != Outcome::success || name == nullptr)
    name = "unknown to the driver";
  if (driver.get_error_string(outcome, &words) != Outcome::success || words == nullptr)
    return fmt::format("error {} ({})", static_cast<int>(outcome), name);
  return fmt::format("{} ({}, {})", words, name, static_cast<int>(outcome));
}

Code code_of_outcome(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::success:
      return Code::ok;
    case Outcome::invalid_value:
    case Outcome::invalid_device:
      return Code::invalid_argument;
    case Outcome::out_of_memory:
      return Code::exhausted;
    case Outcome::not_ready:
      return Code::would_block;
    case Outcome::no_device:
    case Outcome::invalid_image:  // made for a newer CUDA than the driver's
    case Outcome::no_binary_for_gpu:
    case Outcome::peer_access_unsupported:
    case Outcome::not_supported:
    case Outcome::not_permitted:
    case Outcome::stream_capture_unsupported:
      return Code::not_supported;
    default:
      return Code::backend_failed;
  }
}

}  // namespace headrace::cuda
