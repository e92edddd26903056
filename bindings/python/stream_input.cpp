// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream_input.hpp"

#include "bindings/python/convert.hpp"

#include <cstdint>

namespace headrace::python {

void* to_stream(nb::handle given) {
  const nb::object number = nb::getattr(given, "cuda_stream", nb::borrow(given));
  std::uintptr_t stream = 0;
  if (!nb::try_cast(number, stream))
    raise(Error{Code::invalid_argument, "stream: give a torch.cuda.Stream, or the number of a CUDA stream"});
  return reinterpret_cast<void*>(stream);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace headrace::python
