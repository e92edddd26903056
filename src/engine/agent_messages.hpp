// SPDX-License-Identifier: Apache-2.0
// What the agents of peers have told us, until a thread that runs progress handles it: a few in each pass, of
// each link in turn, so that one peer's flood delays neither the others nor the threads that wait.
#pragma once

#include "engine/link.hpp"
#include "engine/progress.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::engine {

class AgentMessages {
 public:
  /// Of one link. A revocation of as many ranges as metadata can name takes 129 messages of 64 KiB.
  static constexpr std::size_t most_messages = 65536;
  static constexpr std::size_t most_bytes = std::size_t{32} << 20;
  static constexpr int in_one_pass = 16;

  using Handle = std::function<void(const std::shared_ptr<Link>& link, std::string_view bytes)>;
  AgentMessages(Progress& progress, Handle handle) : progress_(progress), handle_(std::move(handle)) {}

  /// From any thread, also inside a backend's call. False: as many of this link wait as may.
  [[nodiscard]] bool add(const std::shared_ptr<Link>& link, std::string_view bytes);

 private:
  struct OfLink {
    std::shared_ptr<Link> link;
    std::deque<std::string> messages;
    std::size_t bytes = 0;
  };
  using Next = std::optional<std::pair<std::shared_ptr<Link>, std::string>>;
  void handle_some();
  [[nodiscard]] Next take_next();

  Progress& progress_;
  const Handle handle_;

  std::mutex mutex_;                         ///< guards all below
  std::map<std::uint64_t, OfLink> waiting_;  // by the link's token; none is empty
  std::uint64_t last_ = 0;                   // the token whose turn was last
  bool scheduled_ = false;                   // a pass will look at them
};

}  // namespace headrace::engine
