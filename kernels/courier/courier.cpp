// SPDX-License-Identifier: Apache-2.0
#include "kernels/courier/courier.hpp"

namespace headrace::kernels {
namespace {

constexpr unsigned courier_threads = 544;  // as in courier.cuh

}  // namespace

std::int32_t run_courier(void* kernels, const headrace_courier_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  const bool complete = args->struct_size >= sizeof *args && args->jobs != 0 && args->told != 0 &&
                        args->first != 0 && args->launch != 0;
  if (!complete) return invalid_value;
  return set.launch(set.courier, 1, courier_threads, *args, stream);
}

}  // namespace headrace::kernels
