// SPDX-License-Identifier: Apache-2.0
// What another rank of a communicator says. The first byte chooses the card.
#include "wire/comm_cards.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using namespace headrace::wire;

/// What was accepted is the same when it is written and read again; a refusal has a sentence.
template <class Card, class... Size>
int check(std::string_view bytes, Size... size) {
  const auto card = Card::decode(bytes, size...);
  if (!card) {
    if (card.error().message.empty()) std::abort();
    return 0;
  }
  const std::string written = card->encode();
  const auto again = Card::decode(written, size...);
  if (!again || again->encode() != written) std::abort();
  return 0;
}

int check_outcome(std::string_view bytes) {
  const auto outcome = Outcome::decode(bytes);
  if (!outcome) {
    if (outcome.error().message.empty()) std::abort();
    return 0;
  }
  const std::string written = Outcome::encode(outcome->result);
  const auto again = Outcome::decode(written);
  if (!again || again->result.code() != outcome->result.code() || outcome->rest.size() > bytes.size())
    std::abort();
  return 0;
}

/// The cards that came later: the number of the first byte's nines chooses.
int check_later(unsigned nines, std::string_view bytes) {
  switch (nines) {
    case 1:
      return check<GpuCard>(bytes);
    case 2:
      return check<BoxCard>(bytes);
    case 3:
      return check<Saying>(bytes);
    case 4:
      return check<TensorCard>(bytes);
    case 5:
      return check<TensorPlaces>(bytes, std::size_t{3});
    case 6:
      return check<ElementsCard>(bytes);
    case 14:
      return check<CardPiece>(bytes);
    default:
      return check<StoreEntry>(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 9) {
    case 0:
      return check<Seat>(bytes);
    case 1:
      return check<RankCard>(bytes);
    case 2:
      return check<SplitCard>(bytes);
    case 3:
      return check_outcome(bytes);
    case 4:
      return check<WindowCard>(bytes);
    case 5:
      return check<CallCard>(bytes);
    case 6:
      return check<MeetingEntry>(bytes);
    case 7:
      return check<MeetingTable>(bytes, std::size_t{data[0] / 9U});
    default:
      return check_later(data[0] / 9U, bytes);
  }
}
