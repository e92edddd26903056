// SPDX-License-Identifier: Apache-2.0
#include "rail/nic_pairs.hpp"

#include "rail/link_message.hpp"

#include <algorithm>
#include <string_view>

namespace headrace::rail {
namespace {

std::string_view nic_kind(std::string_view address) { return address.substr(0, address.find(':')); }

std::vector<std::uint32_t> of_kind(std::span<const std::string> addresses, std::string_view kind) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < addresses.size(); ++i)
    if (nic_kind(addresses[i]) == kind) found.push_back(i);
  return found;
}

}  // namespace

std::vector<NicPair> pair_nics(std::span<const std::string> here, std::span<const std::string> there) {
  std::vector<NicPair> pairs;
  for (std::uint32_t i = 0; i < here.size(); ++i) {
    const auto ours = of_kind(here, nic_kind(here[i]));
    const auto theirs = of_kind(there, nic_kind(here[i]));
    if (ours.front() != i || theirs.empty()) continue;  // the kind's first NIC pairs all of it
    for (std::size_t pair = 0; pair < std::max(ours.size(), theirs.size()); ++pair)
      pairs.push_back({ours[pair % ours.size()], theirs[pair % theirs.size()]});
  }
  if (pairs.empty()) pairs.push_back({});
  pairs.resize(std::min<std::size_t>(pairs.size(), max_rails));
  return pairs;
}

bool have_a_kind_in_common(std::span<const std::string> here, std::span<const std::string> there) {
  return std::any_of(here.begin(), here.end(),
                     [&](const std::string& nic) { return !of_kind(there, nic_kind(nic)).empty(); });
}

}  // namespace headrace::rail
