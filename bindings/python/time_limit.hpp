// SPDX-License-Identifier: Apache-2.0
// Timeouts of collectives: seconds, or a datetime.timedelta as torch has it.
#pragma once

#include "bindings/python/convert.hpp"

#include <optional>

namespace headrace::python {

/// A number of seconds, or a datetime.timedelta; nullopt: None was given, which arguments with the default
/// None take.
struct TimeLimit {
  std::optional<double> seconds;

  /// nullopt if the object is none of these. Needs the GIL.
  static std::optional<TimeLimit> open(nb::handle object) noexcept;
  /// Raises InvalidArgument for NaN and negative numbers. math.inf is no limit.
  [[nodiscard]] Timeout or_else(Timeout otherwise) const { return seconds ? to_timeout(seconds) : otherwise; }
};

}  // namespace headrace::python

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

template <>
struct type_caster<headrace::python::TimeLimit> {
  NB_TYPE_CASTER(headrace::python::TimeLimit, const_name("float | datetime.timedelta"))

  template <class Flags>
  bool from_python(handle source, Flags, cleanup_list*) noexcept {
    const auto limit = headrace::python::TimeLimit::open(source);
    if (limit) value = *limit;
    return limit.has_value();
  }
};

NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)
