// SPDX-License-Identifier: Apache-2.0
#include "collectives/missing_ranks.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headrace::collectives {
namespace {

constexpr std::size_t most_pieces = 12;  // a farewell has 240 bytes

/// Numbers one by one; three or more in a row as "0 to 3".
std::vector<std::string> pieces_of(std::span<const int> ranks) {
  std::vector<std::string> pieces;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t end = first + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - first < 3) end = first + 1;
    pieces.push_back(end == first + 1 ? fmt::to_string(ranks[first])
                                      : fmt::format("{} to {}", ranks[first], ranks[end - 1]));
    first = end;
  }
  return pieces;
}

}  // namespace

std::string duration_text(Timeout timeout) {
  if (!timeout) return "any time";
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(*timeout).count();
  return us % 1000 == 0 ? fmt::format("{} ms", us / 1000) : fmt::format("{} us", us);
}

std::string ranks_text(std::span<const int> ranks) {
  std::vector<std::string> pieces = pieces_of(ranks);
  if (pieces.size() > most_pieces) {
    pieces.resize(most_pieces);
    pieces.emplace_back("others");
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i != 0) text += i + 1 == pieces.size() ? " and " : ", ";
    text += pieces[i];
  }
  return text;
}

Error late(const Call& call, std::span<const int> ranks) {
  return make_error(
      Code::timed_out, "{} not come within {}",
      ranks.empty() ? "another rank has" : ranks_text(ranks) + (ranks.size() == 1 ? " has" : " have"),
      duration_text(call.timeout));
}

Error gone(std::span<const int> ranks) {
  return make_error(Code::peer_lost, "{} {}", ranks_text(ranks),
                    ranks.size() == 1 ? "is gone: its process has ended, or it has left"
                                      : "are gone: their processes have ended, or they have left");
}

}  // namespace headrace::collectives
