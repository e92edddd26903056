// SPDX-License-Identifier: Apache-2.0
// The readers of the messages between agents. An accepted message must be encoded and decoded to the same
// message.
#include "wire/agent_message.hpp"

#include <cstdlib>
#include <string_view>

using namespace headrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto message = wire::decode_agent_message(input); message.ok()) {
    const auto again = wire::encode(*message);
    if (std::holds_alternative<wire::UnknownMessage>(*message)) {
      if (again.ok()) std::abort();
    } else if (!again.ok() || !(*wire::decode_agent_message(*again) == *message)) {
      std::abort();
    }
  }
  if (const auto message = wire::decode_user_message(input); message.ok()) {
    if (*wire::encode(*message) != input) std::abort();
  }
  return 0;
}
