// SPDX-License-Identifier: Apache-2.0
// The bytes that the shm backend reads from a peer on the same host, with bytes of a hostile peer: control
// messages, connection information, and the message ring. The first byte chooses one of them; its upper half
// is the number of descriptors.
#include "backends/shm/control_messages.hpp"
#include "host_link/ring.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace headrace;
using namespace headrace::host_link;

/// Our own writer must reproduce each accepted message.
void read_control_message(std::span<const std::byte> packet, std::size_t descriptors) {
  auto message = decode(shm::protocol, packet, descriptors);
  if (!message) return;
  if (auto* const other = std::get_if<Other>(&*message)) {
    const auto own = shm::decode(*other, descriptors);
    if (!own) return;
    *other = std::visit([](const auto& read) { return shm::encode(read); }, *own);
  }
  const std::string again = encode(shm::protocol, *message);
  if (!std::ranges::equal(std::as_bytes(std::span(again)), packet)) std::abort();
}

/// A ring whose control words and data are the input. The reader must never leave its memory.
void read_ring(std::span<const std::byte> input) {
  constexpr std::uint64_t capacity = 4096;
  constexpr std::uint64_t max_message = 512;
  std::vector<std::byte> data(2 * capacity);
  RingControl control{};
  std::uint64_t tail = 0;
  std::memcpy(&tail, input.data(), std::min(sizeof tail, input.size()));
  const auto records = input.subspan(std::min(sizeof tail, input.size()));
  std::copy_n(records.begin(), std::min<std::size_t>(records.size(), capacity), data.begin());
  std::copy_n(data.begin(), capacity, data.begin() + capacity);
  control.tail.store(tail);
  RingReader reader({&control, data.data(), capacity}, max_message);
  RingReader::Message message;
  std::uint64_t sum = 0;
  while (reader.pop(message) == RingReader::Pop::message) {
    if (message.bytes.size() > max_message) std::abort();
    for (const char c : message.bytes) sum += static_cast<unsigned char>(c);
  }
  if (sum == ~std::uint64_t{0}) std::abort();  // uses the sum, so that the compiler keeps it
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(bytes + 1, size - 1));
  switch (bytes[0] & 3) {
    case 0:
      read_control_message(input, bytes[0] >> 4);
      break;
    case 1:
      (void)decode_connection_info(shm::protocol, input);
      break;
    default:
      read_ring(input);
  }
  return 0;
}
