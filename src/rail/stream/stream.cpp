// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/stream.hpp"

namespace headrace::rail::stream {

Result<std::size_t> Stream::fetch(std::span<const iovec>, std::span<const iovec>) {
  return make_error(Code::not_supported, "this stream reaches no memory of the peer");
}

Result<void> Stream::show(const RegisteredMemory& memory) {
  return make_error(Code::not_supported, "this stream reaches no memory of GPU {}",
                    memory.device.value_or(-1));
}

Result<Stream::Begun> Stream::begin_copy(std::span<const iovec>, std::span<const Source>,
                                         std::optional<int>) {
  return make_error(Code::not_supported, "this stream reaches no memory of the peer");
}

}  // namespace headrace::rail::stream
