// SPDX-License-Identifier: Apache-2.0
// The receives of an engine that wait for a message, for one peer or for any.
#pragma once

#include "rail/message.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace headrace::rail {

/// Not thread-safe. Memory: at most `most` receives.
class Receives {
 public:
  static constexpr std::size_t most = 65536;
  struct Posted {
    Receive receive;
    std::uint64_t order = 0;  ///< of the post: earlier ones go first
  };

  /// False: there are too many.
  bool add(const Receive& receive) {
    if (size() >= most) return false;
    give_back({receive, next_order_++});
    return true;
  }
  /// The first that a message of this link may take; null: none.
  [[nodiscard]] const Posted* first_for(const Link& link) const {
    const Posted* const own = first_of(&link);
    const Posted* const any = first_of(nullptr);
    if (own == nullptr || any == nullptr) return own != nullptr ? own : any;
    return own->order < any->order ? own : any;
  }
  Posted take(const Posted& posted) {
    Posted taken = posted;
    const auto of_link = by_link_.find(taken.receive.from);
    of_link->second.erase(taken.order);
    if (of_link->second.empty()) by_link_.erase(of_link);
    forget_token(taken);
    return taken;
  }
  /// To its old place.
  void give_back(const Posted& posted) {
    by_link_[posted.receive.from].emplace(posted.order, posted);
    by_token_.emplace(posted.receive.token, Place{posted.receive.from, posted.order});
  }
  std::optional<Receive> remove(std::uint64_t token) {
    const auto found = by_token_.find(token);
    if (found == by_token_.end()) return std::nullopt;
    const Place place = found->second;
    return take(by_link_.at(place.link).at(place.order)).receive;
  }
  /// Those that wait for this link alone.
  std::vector<Receive> remove_all_of(const Link& link) {
    std::vector<Receive> removed;
    if (const auto found = by_link_.find(&link); found != by_link_.end()) {
      for (const auto& [order, posted] : found->second) {
        removed.push_back(posted.receive);
        forget_token(posted);
      }
      by_link_.erase(found);
    }
    return removed;
  }
  [[nodiscard]] std::size_t size() const { return by_token_.size(); }

 private:
  struct Place {
    const Link* link = nullptr;
    std::uint64_t order = 0;
  };
  void forget_token(const Posted& posted) {
    const auto [first, end] = by_token_.equal_range(posted.receive.token);
    by_token_.erase(
        std::find_if(first, end, [&](const auto& each) { return each.second.order == posted.order; }));
  }
  [[nodiscard]] const Posted* first_of(const Link* link) const {
    const auto found = by_link_.find(link);
    return found == by_link_.end() ? nullptr : &found->second.begin()->second;
  }

  std::map<const Link*, std::map<std::uint64_t, Posted>> by_link_;  // none is empty
  std::unordered_multimap<std::uint64_t, Place> by_token_;  // a caller may cancel all of many thousands
  std::uint64_t next_order_ = 1;
};

}  // namespace headrace::rail
