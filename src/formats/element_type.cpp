// SPDX-License-Identifier: Apache-2.0
#include "formats/element_type.hpp"

#include <algorithm>
#include <array>

namespace headrace::formats {
namespace {

constexpr std::array element_types{
    ElementType{"BOOL", 8, "|b1", true}, ElementType{"U8", 8, "|u1", true},
    ElementType{"I8", 8, "|i1", true},   ElementType{"U16", 16, "<u2", true},
    ElementType{"I16", 16, "<i2", true}, ElementType{"U32", 32, "<u4", true},
    ElementType{"I32", 32, "<i4", true}, ElementType{"U64", 64, "<u8", true},
    ElementType{"I64", 64, "<i8", true}, ElementType{"F16", 16, "<f2", true},
    ElementType{"F32", 32, "<f4", true}, ElementType{"F64", 64, "<f8", true},
    ElementType{"C64", 64, "<c8", true}, ElementType{"C128", 128, "<c16", false},
    ElementType{"BF16", 16, "", true},   ElementType{"F8_E4M3", 8, "", true},
    ElementType{"F8_E5M2", 8, "", true}, ElementType{"F8_E8M0", 8, "", true},
    ElementType{"F6_E2M3", 6, "", true}, ElementType{"F6_E3M2", 6, "", true},
    ElementType{"F4", 4, "", true},
};

}  // namespace

const ElementType* element_type(std::string_view name) {
  const auto* const row = std::find_if(element_types.begin(), element_types.end(),
                                       [&](const ElementType& t) { return t.name == name; });
  return row == element_types.end() ? nullptr : row;
}

const ElementType* element_type_from_npy(std::string_view descr) {
  const auto* const row = std::find_if(element_types.begin(), element_types.end(), [&](const ElementType& t) {
    return !t.npy.empty() && t.npy == descr;
  });
  return row == element_types.end() ? nullptr : row;
}

}  // namespace headrace::formats
