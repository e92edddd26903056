// SPDX-License-Identifier: Apache-2.0
// What the transports of headrace/compat/rdma_transport.hpp take from a peer: URLs, access keys of its
// memory, and what the sides of staged transfers tell each other. The first byte chooses.
#include "compat/endpoint.hpp"
#include "compat/staged_info.hpp"

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using namespace headrace;

/// What was accepted is the same when it is written and read again; a refusal has a sentence.
void read_url(std::string_view bytes) {
  const auto url = compat::read_url(bytes);
  if (url ? encode(*url) != bytes : url.error().message.empty()) std::abort();
}

/// Digits may come in another form, and with zeros before them.
void read_key(std::string_view text) {
  const auto key = compat::read_key(text);
  if (!key && key.error().message.empty()) std::abort();
  if (!key) return;
  const auto again = compat::read_key(encode(*key));
  if (!again || again->process != key->process || again->address != key->address ||
      again->descriptor != key->descriptor)
    std::abort();
}

void read_staged_info(std::string_view bytes) {
  const auto info = compat::read_staged_info(bytes);
  if (info ? encode(*info) != bytes : info.error().message.empty()) std::abort();
  if (info && (info->staging_bytes == 0 ||
               info->staging_bytes > info->staging.length_bytes() - sizeof(compat::ChunkHead)))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) read_url(bytes);
  if (data[0] % 3 == 1) read_key(bytes);
  if (data[0] % 3 == 2) read_staged_info(bytes);
  return 0;
}
