// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/coll_choices.hpp"

#include "cli/common/errors.hpp"
#include "cli/common/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace headrace::cli {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

namespace {

Error no_such(const char* option, const std::string& name, const std::vector<std::string>& names) {
  const auto similar = nearest(name, names, 1);
  return fail(Code::invalid_argument, "{}: there is no \"{}\"{} There are: all, {}", option, name,
              similar.empty() ? "." : ": did you mean " + similar.front() + "?", fmt::join(names, ", "));
}

/// The values that a list names; "all" names every one.
template <class Value>
Result<std::vector<Value>> chosen(const char* option, const std::string& list,
                                  const std::vector<std::pair<std::string, Value>>& all) {
  std::vector<Value> values;
  for (const std::string& word : words_of(list)) {
    const auto at = std::ranges::find(all, word, &std::pair<std::string, Value>::first);
    if (word == "all") {
      for (const auto& [name, value] : all) values.push_back(value);
    } else if (at != all.end()) {
      values.push_back(at->second);
    } else {
      std::vector<std::string> names;
      for (const auto& [name, value] : all) names.push_back(name);
      return no_such(option, word, names);
    }
  }
  return values;
}

}  // namespace

Result<std::vector<const CollOperation*>> chosen_operations(const std::string& list) {
  std::vector<std::pair<std::string, const CollOperation*>> all;
  for (const CollOperation& operation : coll_operations()) all.emplace_back(operation.name, &operation);
  return chosen("--ops", list, all);
}

Result<std::vector<DType>> chosen_types(const std::string& list) {
  std::vector<std::pair<std::string, DType>> all;
  for (std::size_t i = 0; i < dtype_count; ++i)
    all.emplace_back(dtype_name(static_cast<DType>(i)), static_cast<DType>(i));
  return chosen("--type", list, all);
}

Result<std::vector<ReduceOp::Kind>> chosen_reductions(const std::string& list) {
  std::vector<std::pair<std::string, ReduceOp::Kind>> all;
  for (int i = ReduceOp::sum; i <= ReduceOp::premul_sum; ++i)
    all.emplace_back(reduce_op_name(static_cast<ReduceOp::Kind>(i)), static_cast<ReduceOp::Kind>(i));
  return chosen("--redop", list, all);
}

Result<std::vector<std::uint64_t>> chosen_sizes(const std::string& text, unsigned factor) {
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return parse_sizes(text);
  HEADRACE_CLI_TRY(least, parse_size(text.substr(0, dash)));
  HEADRACE_CLI_TRY(most, parse_size(text.substr(dash + 1)));
  if (least == 0 || least > most)
    return fail(Code::invalid_argument, "--bytes {}: the first size is at least 1 and at most the second",
                text);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = least; size <= most; size *= factor) {
    sizes.push_back(size);
    if (size > most / factor) break;
  }
  return sizes;
}

}  // namespace headrace::cli
