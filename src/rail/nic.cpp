// SPDX-License-Identifier: Apache-2.0
#include "rail/nic.hpp"

#include <algorithm>

namespace headrace::rail {

Result<std::unique_ptr<Nic>> Nic::open(std::unique_ptr<Provider> provider) {
  std::unique_ptr<Nic> nic(new Nic(std::move(provider)));
  HEADRACE_TRY(registered,
               nic->provider_->register_memory(
                   {reinterpret_cast<std::uintptr_t>(nic->memory_.get()), memory_bytes, {}, Access::local}));
  nic->memory_id_ = registered.id;
  for (std::uint32_t slot = slots; slot-- > 0;) nic->free_.push_back(slot);
  for (std::uint32_t slot = slots; slot < slots + receives; ++slot) {
    const Status posted = nic->provider_->post_receive(nic->range(slot), slot);
    if (!posted.ok())
      return make_error(posted.code, "{} took {} of {} receives", nic->provider_->info().name, slot - slots,
                        receives);
  }
  return nic;
}

std::optional<std::uint32_t> Nic::take_slot(std::size_t taken) {
  if (free_.empty() || taken > free_.size() / 8) return std::nullopt;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

LocalRange Nic::put(std::uint32_t slot, std::string_view message) {
  LocalRange at = range(slot);
  at.bytes = message.size();
  std::copy(message.begin(), message.end(), memory_.get() + at.offset);
  return at;
}

std::string Nic::received(std::uint64_t token, std::uint64_t bytes) {
  const LocalRange at = range(token);
  std::string message(memory_.get() + at.offset, std::min(bytes, at.bytes));
  // A NIC that refuses its own receive again is down, and its peers are lost.
  static_cast<void>(provider_->post_receive(at, token));
  return message;
}

Result<LocalRegion> register_with_all(Nics& nics, const Memory& memory) {
  LocalRegion region{memory, {}, {}};
  std::optional<Error> refused;
  bool taken = false;
  for (const auto& nic : nics) {
    auto registered = nic->provider().register_memory(memory);
    if (!registered) {
      Error error =
          std::move(registered.error())
              .within(fmt::format("register {} bytes on {}", memory.bytes, nic->provider().info().name));
      if (error.code != Code::not_supported) {
        deregister_with_all(nics, region);
        return error;
      }
      if (!refused) refused = std::move(error);
    }
    taken = taken || registered;
    region.ids.push_back(registered ? registered->id : MemoryId{});
    region.keys.push_back(registered ? std::move(registered->key) : std::string(no_key));
  }
  if (!taken) return *std::move(refused);
  return region;
}

void deregister_with_all(Nics& nics, const LocalRegion& region) {
  for (std::size_t nic = 0; nic < region.ids.size(); ++nic)
    if (region.keys[nic] != no_key) nics[nic]->provider().deregister(region.ids[nic]);
}

}  // namespace headrace::rail
