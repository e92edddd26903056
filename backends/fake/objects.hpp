// SPDX-License-Identifier: Apache-2.0
// The objects that an instance knows by key, for `query`: what a store of objects answers, without a store.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace headrace::fake {

class Objects {
 public:
  /// "KEY=BYTES, KEY=BYTES, ...", as the option `objects` has it. A key may hold an '='.
  ///   errors  invalid_argument (what is wrong with which one)
  static Result<Objects> parse(std::string_view text);

  /// The answer to HEADRACE_QUERY: a msgpack array, for each region nil or {"bytes": n, "key": its key}.
  ///   errors  not_supported (asked for something else than an object), invalid_argument (an object without a
  ///   key)
  [[nodiscard]] Result<std::string> answer(const headrace_query_v1& args) const;

 private:
  std::map<std::string, std::uint64_t, std::less<>> bytes_by_key_;
};

}  // namespace headrace::fake
