// SPDX-License-Identifier: Apache-2.0
#include "p2p/copies.hpp"

#include <headrace/comm_call.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace headrace::p2p {
namespace {

/// One call of the driver, which may run the copies side by side, and beside kernels.
cuda::Outcome queue_batch(const cuda::DriverTable& driver, headrace_collectives_copies_v1& copies,
                          cuda::Stream stream) {
  cuda::CopyAttributes attributes;
  attributes.flags = cuda::copy_prefer_overlap;
  std::size_t first = 0, failed = 0;
  return driver.memcpy_batch_async(copies.targets, copies.sources, copies.bytes, copies.count, &attributes,
                                   &first, 1, &failed, stream);
}

}  // namespace

bool has_elements_of(const headrace_comm_call_v1& call, std::uint64_t bytes) {
  const auto is_long = [bytes](const headrace_comm_elements_v1& elements) {
    return elements.count * element_bytes(static_cast<DType>(elements.dtype)) >= bytes;
  };
  return std::ranges::any_of(std::span(call.inputs, call.input_count), is_long) ||
         std::ranges::any_of(std::span(call.outputs, call.output_count), is_long);
}

cuda::Outcome queue_copies(const cuda::DriverTable& driver, headrace_collectives_copies_v1& copies,
                           cuda::Stream stream, bool captured) {
  if (copies.count == 0) return cuda::Outcome::success;
  // The driver takes no batch on the default stream, nor in a capture.
  if (stream != nullptr && stream != cuda::legacy_stream && !captured) {
    const cuda::Outcome queued = queue_batch(driver, copies, stream);
    if (queued != cuda::Outcome::not_supported) return queued;
  }
  for (std::uint32_t i = 0; i < copies.count; ++i) {
    const cuda::Outcome queued =
        driver.memcpy_async(copies.targets[i], copies.sources[i], copies.bytes[i], stream);
    if (queued != cuda::Outcome::success) return queued;
  }
  return cuda::Outcome::success;
}

}  // namespace headrace::p2p
