// SPDX-License-Identifier: Apache-2.0
// A NIC of an engine: its provider, and the registered memory in which messages of links are sent and
// received.
#pragma once

#include "base/errors.hpp"
#include "rail/link_message.hpp"
#include "rail/provider.hpp"
#include "rail/region.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail {

/// Not thread-safe: the engine's worker uses it.
class Nic {
 public:
  static constexpr std::uint32_t slots = 64;  ///< for sending, and as many for receiving

  ///   errors  those of the provider
  static Result<std::unique_ptr<Nic>> open(std::unique_ptr<Provider> provider);
  /// The provider goes first: it may still touch the memory.
  ~Nic() { provider_.reset(); }
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  [[nodiscard]] Provider& provider() { return *provider_; }

  /// Room for a message; none: all are on their way.
  [[nodiscard]] std::optional<std::uint32_t> take_slot();
  [[nodiscard]] std::size_t free_slots() const { return free_.size(); }
  void give_back(std::uint32_t slot) { free_.push_back(slot); }
  [[nodiscard]] LocalRange put(std::uint32_t slot, std::string_view message);
  /// What lies in a receive, which is then posted again.
  [[nodiscard]] std::string received(std::uint64_t token, std::uint64_t bytes);

 private:
  explicit Nic(std::unique_ptr<Provider> provider) : provider_(std::move(provider)) {}
  [[nodiscard]] LocalRange range(std::uint64_t slot) const {
    return {memory_id_, slot * max_link_message_bytes, max_link_message_bytes};
  }

  std::unique_ptr<Provider> provider_;
  std::vector<char> memory_ = std::vector<char>(2 * slots * max_link_message_bytes);
  MemoryId memory_id_{};
  std::vector<std::uint32_t> free_;
};

using Nics = std::vector<std::unique_ptr<Nic>>;

///   errors  those of the providers; nothing is registered then. not_supported only if no NIC takes it
[[nodiscard]] Result<LocalRegion> register_with_all(Nics& nics, const Memory& memory);
void deregister_with_all(Nics& nics, const LocalRegion& region);

}  // namespace headrace::rail
