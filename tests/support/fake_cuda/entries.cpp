// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/entries.hpp"

#include "support/fake_cuda/driver.hpp"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace headrace::cuda {
namespace {

/// Turns a member function into an entry of the table. The entry counts the call, applies the script and
/// holds the lock.
template <auto Method>
struct Entry;
template <class... Args, Outcome (FakeDriver::*Method)(Args...)>
struct Entry<Method> {
  static inline const char* symbol = nullptr;
  static inline std::uint64_t known_driver = 0;
  static inline Calls* calls = nullptr;
  static inline bool unsafe = false;
  static Outcome call(Args... args) {
    FakeDriver& driver = *FakeDriver::current();
    std::unique_lock lock(driver.mutex);
    // Looking the name up takes longer than many calls, so it is done once for each driver.
    if (known_driver != driver.serial) {
      calls = &driver.calls[symbol];
      unsafe = FakeDriver::is_unsafe_in_captures(symbol);
      known_driver = driver.serial;
    }
    if (const auto outcome = calls->add()) return *outcome;
    if (unsafe && driver.disturbs_captures()) return Outcome::stream_capture_unsupported;
    std::unique_lock<std::mutex>* const outer = std::exchange(FakeDriver::call_lock(), &lock);
    const Outcome outcome = (driver.*Method)(args...);
    FakeDriver::call_lock() = outer;
    return outcome;
  }
};

void* find_function(const std::string& name) {
#define HEADRACE_FAKE_ENTRY(member, text, ...)                                                               \
  static_assert(std::is_same_v<decltype(&Entry<&FakeDriver::member>::call), decltype(DriverTable::member)>); \
  if (name == (text)) {                                                                                      \
    Entry<& FakeDriver::member>::symbol = text;                                                              \
    return reinterpret_cast<void*>(&Entry<&FakeDriver::member>::call);                                       \
  }
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_FAKE_ENTRY)
#undef HEADRACE_FAKE_ENTRY
  return nullptr;
}

Outcome get_proc_address(const char* name, void** function, int, std::uint64_t, int* answer) {
  FakeDriver& driver = *FakeDriver::current();
  const std::scoped_lock lock(driver.mutex);
  *function = driver.lacking.contains(name) ? nullptr : find_function(name);
  *answer = *function == nullptr ? 1 : 0;
  return *function == nullptr ? Outcome::not_found : Outcome::success;
}

}  // namespace

void* find_symbol(const char* name) {
  const std::string wanted = name;
  if (FakeDriver::current()->lacking.contains(wanted)) return nullptr;
  if (wanted == "cuGetProcAddress_v2") return reinterpret_cast<void*>(&get_proc_address);
  return wanted == "cuDriverGetVersion" ? find_function(wanted) : nullptr;
}

}  // namespace headrace::cuda
