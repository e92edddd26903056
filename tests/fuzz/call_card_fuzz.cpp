// SPDX-License-Identifier: Apache-2.0
// What another rank says that it calls. The same cards never differ, and a card beside one without lists
// never leads out of them.
#include "collectives/call_card.hpp"

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using headrace::collectives::CallCard;
  const auto card = CallCard::decode({reinterpret_cast<const char*>(data), size});
  if (!card) {
    if (card.error().message.empty()) std::abort();
    return 0;
  }
  const auto again = CallCard::decode(card->encode());
  if (!again || again->encode() != card->encode()) std::abort();
  CallCard empty = *card;
  empty.gives = empty.expects = {};
  if (headrace::collectives::difference(std::vector{empty, empty})) std::abort();
  const auto differ = headrace::collectives::difference(std::vector{*card, empty, *card});
  if (differ && differ->message.empty()) std::abort();
  return 0;
}
