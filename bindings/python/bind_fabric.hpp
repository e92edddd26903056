// SPDX-License-Identifier: Apache-2.0
// What the files of the fabric's binding share.
#pragma once

#include "bindings/python/binding.hpp"
#include "bindings/python/fabric_handle.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::python {

void bind_fabric_buffers(nb::module_& module);
void bind_fabric_values(nb::module_& module);  ///< options, groups, cards, counters, targets
void bind_fabric_peers(nb::module_& module);
void bind_fabric_receiver(nb::module_& module);
void bind_fabric_registration(nb::class_<PyFabric>& fabric);
void bind_fabric_pool(nb::class_<PyFabric>& fabric);
void bind_fabric_posts(nb::class_<PyFabric>& fabric);
void bind_fabric_peer_calls(nb::class_<PyFabric>& fabric);
void bind_fabric_messages(nb::class_<PyFabric>& fabric);
void bind_fabric_expect(nb::class_<PyFabric>& fabric);
void bind_fabric_words(nb::module_& module);  ///< flags, watched words, queues of commands
void bind_fabric_kernels(nb::class_<PyFabric>& fabric);

/// Memory that a call was given, and the object that keeps it in place.
struct GivenFabricMemory {
  MemoryRange range;
  std::shared_ptr<const void> keeper;
};
/// Raises invalid_argument for what has no memory, or gaps.
GivenFabricMemory given_fabric_memory(nb::handle object);

/// The values of an enum by their names in Python.
template <class Enum, std::size_t Count>
using EnumNames = std::array<std::pair<std::string_view, Enum>, Count>;

inline constexpr EnumNames<FabricAccess, 3> access_names{{{"local", FabricAccess::local},
                                                          {"readable", FabricAccess::readable},
                                                          {"writable", FabricAccess::writable}}};

template <class Enum, std::size_t Count>
nb::str enum_str(Enum value, const EnumNames<Enum, Count>& names) {
  for (const auto& [name, each] : names)
    if (each == value) return to_str(name);
  return to_str("unknown");
}

/// Raises invalid_argument with all names if it is none of them.
template <class Enum, std::size_t Count>
Enum to_enum(std::string_view text, const char* what, const EnumNames<Enum, Count>& names) {
  std::string all;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    all += (all.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  }
  raise_invalid(std::string(what) + " is \"" + std::string(text) + "\": give one of " + all);
}

/// An immediate, a scope, a barrier's value. Raises invalid_argument unless 0 <= value < 2^32.
std::uint32_t to_u32(nb::handle value, const char* what);

}  // namespace headrace::python
