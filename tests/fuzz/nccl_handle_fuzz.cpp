// SPDX-License-Identifier: Apache-2.0
// A rank that the caller brings to the backend nccl.
#include "nccl/rank_handle.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

using headrace::nccl::RankHandle;

/// What was accepted is the same when it is written and read again; a refusal has a sentence.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto handle = RankHandle::decode(bytes);
  if (!handle) {
    if (handle.error().message.empty()) std::abort();
    return 0;
  }
  const auto again = RankHandle::decode(handle->encode());
  if (!again || again->encode() != handle->encode()) std::abort();
  const std::array both{*handle, *again};
  if (headrace::nccl::ranks_that_grow(both) != 0) std::abort();  // they are one rank
  return 0;
}
