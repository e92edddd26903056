// SPDX-License-Identifier: Apache-2.0
#include "collectives/split.hpp"

#include "base/errors.hpp"
#include "collectives/algorithms.hpp"

#include <algorithm>

namespace headrace::collectives {
namespace {

constexpr std::uint64_t most_text_bytes = std::uint64_t{64} << 20;  // metadata of an agent with many regions

}  // namespace

Result<int> index_in_group(std::span<const int> group, int rank, int size) {
  int mine = -1;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i] < 0 || group[i] >= size)
      return make_error(Code::invalid_argument, "split: there is no rank {}; there are {} ranks, from 0",
                        group[i], size);
    if (std::ranges::count(group, group[i]) > 1)
      return make_error(Code::invalid_argument, "split: rank {} is twice in the group", group[i]);
    if (group[i] == rank) mine = static_cast<int>(i);
  }
  if (!group.empty() && mine < 0) {
    return make_error(Code::invalid_argument,
                      "split: rank {} is not in the group that it gives: give its own group, or no ranks",
                      rank);
  }
  return mine;
}

Result<std::vector<int>> ranks_left(std::span<const int> excluded, int rank, int size) {
  for (const int one : excluded) {
    if (one < 0 || one >= size || one == rank || std::ranges::count(excluded, one) > 1)
      return make_error(
          Code::invalid_argument,
          "shrink: rank {} cannot be left out: give other ranks, each once; there are {}, from 0", one, size);
  }
  std::vector<int> left;
  for (int one = 0; one < size; ++one)
    if (std::ranges::count(excluded, one) == 0) left.push_back(one);
  return left;
}

Result<void> gather_texts(Exchange& exchange, const std::string& mine, std::vector<std::string>& all) {
  const auto size = static_cast<std::size_t>(exchange.size());
  std::vector<std::uint64_t> lengths(size);
  const std::uint64_t length = mine.size();
  std::vector<Part> parts(size);
  for (std::size_t i = 0; i < size; ++i)
    parts[i] = {reinterpret_cast<std::byte*>(&lengths[i]), sizeof lengths[i]};
  HEADRACE_TRY_VOID(
      all_gather(exchange, parts, {reinterpret_cast<const std::byte*>(&length), sizeof length}));
  all.assign(size, {});
  for (std::size_t i = 0; i < size; ++i) {
    if (lengths[i] > most_text_bytes)
      return make_error(Code::corrupt, "rank {} sends a text of {} bytes: at most {} are possible", i,
                        lengths[i], most_text_bytes);
    all[i].resize(lengths[i]);
    parts[i] = {reinterpret_cast<std::byte*>(all[i].data()), all[i].size()};
  }
  return all_gather(exchange, parts, {reinterpret_cast<const std::byte*>(mine.data()), mine.size()});
}

}  // namespace headrace::collectives
