// SPDX-License-Identifier: Apache-2.0
#include "moe/way.hpp"

#include "base/errors.hpp"
#include "moe/config.hpp"

namespace headrace::moe {
namespace {

constexpr std::string_view before_way = "\nfabric ";

}  // namespace

std::string way_name(const MoEConfig& config) { return config.name + "/way"; }

std::string way_text(const MoEConfig& config, std::string_view way) {
  std::string text = window_text(config);
  text.pop_back();
  return text.append(before_way).append(way);
}

Result<std::string> way_of(const MoEConfig& config, int peer, std::string_view theirs) {
  const std::size_t at = theirs.find(before_way);
  if (at == std::string_view::npos)
    return make_error(Code::corrupt, "rank {} says nothing of the way to its window", peer);
  HEADRACE_TRY_VOID(compare_configs(config.rank, config_text(config), peer, theirs));
  HEADRACE_TRY_VOID(check_window_rank(peer, theirs.substr(0, at)));
  return std::string(theirs.substr(at + before_way.size()));
}

}  // namespace headrace::moe
