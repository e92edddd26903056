// SPDX-License-Identifier: Apache-2.0
// The readers of what ranks of a MoE tell one another about weights. An accepted message must be encoded to
// the same bytes.
#include "moe/weights_message.hpp"

#include <cstdlib>
#include <string_view>

using namespace headrace;

namespace {

template <class Message>
void check_message(const Result<Message>& message, std::string_view input) {
  if (message.ok() && moe::encode(*message) != input) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.size() > (std::size_t{64} << 10)) return 0;  // no notification is longer
  static_cast<void>(moe::weights_kind(input));
  check_message(moe::decode_weights_card(input), input);
  check_message(moe::decode_weights_counts(input), input);
  check_message(moe::decode_weights_end(input), input);
  return 0;
}
