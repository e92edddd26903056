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
  static constexpr std::uint32_t slots = 512;    ///< for sending
  static constexpr std::uint32_t receives = 64;  ///< that are posted

  ///   errors  those of the provider
  static Result<std::unique_ptr<Nic>> open(std::unique_ptr<Provider> provider);
  /// The provider goes first: it may still touch the memory.
  ~Nic() { provider_.reset(); }
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  [[nodiscard]] Provider& provider() { return *provider_; }

  /// Room for a message of a rail that has `taken` already. None: it has its share, which is smaller the
  /// fewer are free. A peer that takes no messages so leaves room for those to others.
  [[nodiscard]] std::optional<std::uint32_t> take_slot(std::size_t taken);
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
  // Not filled, so that slots that are never used take no memory.
  static constexpr std::size_t memory_bytes = (slots + receives) * max_link_message_bytes;
  std::unique_ptr<char[]> memory_{new char[memory_bytes]};
  MemoryId memory_id_{};
  std::vector<std::uint32_t> free_;
};

using Nics = std::vector<std::unique_ptr<Nic>>;

///   errors  those of the providers; nothing is registered then. not_supported only if no NIC takes it
[[nodiscard]] Result<LocalRegion> register_with_all(Nics& nics, const Memory& memory);
void deregister_with_all(Nics& nics, const LocalRegion& region);

}  // namespace headrace::rail
