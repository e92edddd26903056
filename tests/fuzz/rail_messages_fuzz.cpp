// SPDX-License-Identifier: Apache-2.0
// What the ends of a link over several NICs tell each other, and what the receiver makes of it.
#include "rail/arrivals.hpp"
#include "rail/link_message.hpp"

#include <cstdlib>
#include <cstring>
#include <string_view>

using namespace headrace;

namespace {

void read_message(std::string_view bytes) {
  const auto message = rail::read_link_message(bytes);
  if (message ? rail::encode(*message) != bytes : message.error().message.empty()) std::abort();
}

void read_hello(std::string_view bytes) {
  const auto hello = rail::read_rail_hello(bytes);
  if (hello ? rail::encode(*hello) != bytes : hello.error().message.empty()) std::abort();
}

/// Words of 32 bits: an odd one is a mark, an even one an announcement. Each number is counted once at most.
void arrive(std::string_view bytes) {
  rail::Arrivals arrivals;
  std::uint64_t counted = 0;
  for (std::uint32_t word = 0; bytes.size() >= sizeof word; bytes.remove_prefix(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    const auto what = word >> 1;
    const bool went = (word & 1) != 0 ? arrivals.marked(what).ok()
                                      : arrivals.announced({1 + what / 128 % 4096, what % 65, 0, 0, 1}).ok();
    if (!went) return;
    while (arrivals.next()) ++counted;
    const auto told = arrivals.counted();
    std::uint64_t known = told.below - 1;
    for (std::uint64_t i = 0; i < rail::number_window; ++i) known += told.has(told.below + i) ? 1 : 0;
    if (known != counted || arrivals.open() > rail::number_window) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      read_message(bytes);
      break;
    case 1:
      read_hello(bytes);
      break;
    default:
      arrive(bytes);
  }
  return 0;
}
