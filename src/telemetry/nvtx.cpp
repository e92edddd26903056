// SPDX-License-Identifier: Apache-2.0
#include "telemetry/nvtx.hpp"

#include "base/options.hpp"
#include "vendor/dynamic_library.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace headrace::nvtx {
namespace {

// nvToolsExt.h and nvtxDetail/nvtxTypes.h, version 3.
constexpr std::uint32_t version = 3;
constexpr std::uint32_t callbacks_table = 1, version_table = 3;
constexpr int core_module = 1, core2_module = 5;
constexpr std::size_t functions_of_a_module = 16;
constexpr std::size_t range_start = 5, range_end = 7;

using Function = void (*)();
using StartRange = std::uint64_t (*)(const char* name);
using EndRange = void (*)(std::uint64_t range);

struct CallbacksTable {
  std::size_t struct_size;
  int (*get_functions)(int module, Function*** table, unsigned* last);
};
struct VersionTable {
  std::size_t struct_size;
  std::uint32_t version, reserved;
  void (*set_tools_version)(std::uint32_t);
};

/// The functions of a module, by number, and where each lies: the tool writes there.
class Module {
 public:
  Module() {
    for (std::size_t i = 0; i < functions_of_a_module; ++i) places_[i] = &functions_[i];
  }
  Function** places() { return places_.data(); }
  [[nodiscard]] Function at(std::size_t number) const { return functions_[number]; }

 private:
  std::array<Function, functions_of_a_module> functions_{};
  std::array<Function*, functions_of_a_module> places_{};
};

/// One for the process, since a tool's calls name no instance.
struct Tool {
  Module core, core2;
  std::atomic<bool> attached = false;
};
Tool& tool() {
  static Tool one;
  return one;
}

int get_functions(int module, Function*** table, unsigned* last) {
  if (module != core_module && module != core2_module) return 0;
  if (table != nullptr) *table = (module == core_module ? tool().core : tool().core2).places();
  if (last != nullptr) *last = functions_of_a_module - 1;
  return 1;
}

void set_tools_version(std::uint32_t /*version*/) {}

const void* get_table(std::uint32_t number) {
  static constexpr CallbacksTable callbacks{sizeof(CallbacksTable), get_functions};
  static constexpr VersionTable versions{sizeof(VersionTable), version, 0, set_tools_version};
  if (number == callbacks_table) return &callbacks;
  return number == version_table ? &versions : nullptr;
}

}  // namespace

void load() {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto path = environment_variable("NVTX_INJECTION64_PATH");
    if (!path || path->empty()) return;
    const auto library = DynamicLibrary::open({path->c_str()}, "the library of a profiler", "none");
    Initialize initialize = nullptr;
    if (library && library->bind("InitializeInjectionNvtx2", initialize)) attach(initialize);
  });
}

void attach(Initialize initialize) {
  if (initialize(get_table) == 1) tool().attached.store(true, std::memory_order_release);
}

namespace {

bool is_attached() { return tool().attached.load(std::memory_order_acquire); }

}  // namespace

std::uint64_t start_range(const std::string& name) {
  if (!is_attached()) return 0;
  const auto start = reinterpret_cast<StartRange>(tool().core.at(range_start));
  return start == nullptr ? 0 : start(("headrace: " + name).c_str());
}

void end_range(std::uint64_t range) {
  if (range == 0) return;
  const auto end = reinterpret_cast<EndRange>(tool().core.at(range_end));
  if (end != nullptr) end(range);
}

CallRange::CallRange(std::string_view of, std::string_view call)
    : range_(is_attached() ? start_range(std::string(of) + " " + std::string(call)) : 0) {}

}  // namespace headrace::nvtx
