// SPDX-License-Identifier: Apache-2.0
// JSON values as a pickle of Python.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace headrace::collectives {

/// The pickle (protocol 2) of a value of objects, arrays, texts, numbers, truth values and null. Texts are
/// UTF-8.
[[nodiscard]] std::string pickle_of(const nlohmann::ordered_json& value);

}  // namespace headrace::collectives
