// SPDX-License-Identifier: Apache-2.0
#include "kernels/courier/courier.hpp"

#include "kernels/common/kernel_set.hpp"

#include <headrace/plugin/kernels/courier_v1.h>

#include <cstddef>
#include <cstdint>

namespace headrace::kernels::courier {
namespace {

struct Functions {
  void* courier;
};

constexpr FamilyKernel family_kernels[] = {{"headrace_courier", offsetof(Functions, courier)}};

constexpr unsigned courier_threads = 544;  // as in courier.cuh

std::int32_t run(void* kernels, const headrace_courier_launch_v1* args, void* stream) {
  const bool complete = args->struct_size >= sizeof *args && args->jobs != 0 && args->told != 0 &&
                        args->first != 0 && args->launch != 0;
  if (!complete) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  return set.launch(set.functions_of<Functions>(family).courier, 1, courier_threads, *args, stream);
}

constexpr headrace_courier_v1 table{{sizeof table, HEADRACE_COURIER_FAMILY_VERSION, 0}, run};

}  // namespace

constinit const Family family{HEADRACE_COURIER_FAMILY, &table.family, family_kernels, sizeof(Functions)};

}  // namespace headrace::kernels::courier
