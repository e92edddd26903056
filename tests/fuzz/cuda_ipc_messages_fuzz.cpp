// SPDX-License-Identifier: Apache-2.0
// The control messages that the cuda_ipc backend reads from a peer on the same host, with bytes of a hostile
// peer. The first byte is the number of descriptors of the message.
#include "backends/cuda_ipc/control_messages.hpp"
#include "host_link/control_messages.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

using namespace headrace;

/// Our own writer must reproduce each accepted message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const auto packet = std::as_bytes(std::span(bytes + 1, size - 1));
  auto message = host_link::decode(cuda_ipc::protocol, packet, bytes[0]);
  if (!message) return 0;
  if (auto* const other = std::get_if<host_link::Other>(&*message)) {
    const auto own = cuda_ipc::decode(*other, bytes[0]);
    if (!own) return 0;
    *other = cuda_ipc::encode(*own);
  }
  const std::string again = host_link::encode(cuda_ipc::protocol, *message);
  if (!std::ranges::equal(std::as_bytes(std::span(again)), packet)) std::abort();
  return 0;
}
