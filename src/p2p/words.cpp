// SPDX-License-Identifier: Apache-2.0
#include "p2p/words.hpp"

#include "base/errors.hpp"

namespace headrace::p2p {
namespace {

EarlyEnd::Of kind_of(std::uint64_t named_reason) {
  if ((named_reason & HEADRACE_COLLECTIVES_IN_SEND) != 0) return EarlyEnd::Of::send;
  return (named_reason & HEADRACE_COLLECTIVES_IN_RECV) != 0 ? EarlyEnd::Of::recv : EarlyEnd::Of::operation;
}

}  // namespace

Code EarlyEnd::code() const {
  if (reason == HEADRACE_COLLECTIVES_ABORTED) return Code::canceled;
  return reason == HEADRACE_COLLECTIVES_TIMED_OUT ? Code::timed_out : Code::invalid_argument;
}

std::string EarlyEnd::text() const {
  const auto split = static_cast<std::int64_t>(seen);
  switch (reason) {
    case HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT:
    case HEADRACE_COLLECTIVES_WRONG_OUTPUT_SPLIT: {
      const char* const side = reason == HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT ? "input" : "output";
      return fmt::format(
          "the {} split for rank {} is {}, and so many elements of the {} are not left: give splits of at "
          "least 0 that fit",
          side, peer, split, side);
    }
    case HEADRACE_COLLECTIVES_OWN_SPLITS_DIFFER:
      return fmt::format("the output split for this rank is {}, and its input split is another number",
                         split);
    case HEADRACE_COLLECTIVES_OVERLAPS:
      return "another call of this rank, or a replay of one, ran at the same time: order the streams of "
             "replays and of calls by events";
    case HEADRACE_COLLECTIVES_WRONG_LENGTH:
      return fmt::format(
          "the message has {} bytes at rank {}, and another number here: give both the same count and type",
          seen, peer);
    default:
      break;
  }
  return of == Of::operation ? text_of_operation() : text_of_message();
}

std::string EarlyEnd::text_of_operation() const {
  if (seen < epoch)
    return fmt::format(
        "rank {} has not come: it has begun {} operations, and this one is number {}, as its "
        "GPU counts them",
        peer, seen, epoch);
  return fmt::format("rank {} has begun operation {}, as its GPU counts them, and does not go on", peer,
                     epoch);
}

std::string EarlyEnd::text_of_message() const {
  const char* const of_peer = of == Of::recv ? "sends to this rank" : "receives from this rank";
  if (seen < epoch)
    return fmt::format(
        "rank {} has not come: it has begun {} {}, and this one is number {}, as its GPU counts them", peer,
        seen, of_peer, epoch);
  return fmt::format("rank {} has begun {} {}, as its GPU counts them, and does not go on", peer, seen,
                     of_peer);
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
  constexpr std::uint64_t in_message = HEADRACE_COLLECTIVES_IN_SEND | HEADRACE_COLLECTIVES_IN_RECV;
  return EarlyEnd{reason & ~in_message, kind_of(reason), static_cast<int>(written.peer), written.epoch,
                  written.seen};
}

std::optional<EarlyEnd> Words::any_early_end() const {
  for (int status = 0; status < count; ++status)
    if (const auto found = early_end(status)) return found;
  return std::nullopt;
}

}  // namespace headrace::p2p
