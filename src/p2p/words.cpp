// SPDX-License-Identifier: Apache-2.0
#include "p2p/words.hpp"

#include "base/errors.hpp"

namespace headrace::p2p {

std::string EarlyEnd::text() const {
  if (seen < epoch)
    return fmt::format(
        "rank {} has not come: it has begun {} operations, and this one is number {}, as its "
        "GPU counts them",
        peer, seen, epoch);
  return fmt::format("rank {} has begun operation {}, as its GPU counts them, and does not go on", peer,
                     epoch);
}

Result<Words> Words::make(const std::shared_ptr<const gpu::Device>& device) {
  HEADRACE_TRY(memory, gpu::PinnedMemory::allocate(device, offset_of(count)));
  return Words(std::move(memory));
}

std::optional<EarlyEnd> Words::early_end(int status) const {
  auto& written =
      *reinterpret_cast<headrace_collectives_status_v1*>(memory_.bytes().data() + offset_of(status));
  const std::uint64_t reason = std::atomic_ref(written.reason).load(std::memory_order_acquire);
  if (reason == 0) return std::nullopt;
  return EarlyEnd{reason == HEADRACE_COLLECTIVES_TIMED_OUT, static_cast<int>(written.peer), written.epoch,
                  written.seen};
}

std::optional<EarlyEnd> Words::any_early_end() const {
  for (int status = 0; status < count; ++status)
    if (const auto found = early_end(status)) return found;
  return std::nullopt;
}

}  // namespace headrace::p2p
