// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/kernel_set.hpp"

#include <cstring>

namespace headrace::kernels {

std::int32_t KernelSet::open(headrace_kernels_open_v1& args, std::span<const Family* const> families,
                             std::unique_ptr<KernelSet>& set) {
  std::unique_ptr<KernelSet> opened(new KernelSet(*args.driver, args.multiprocessors));
  args.failed = "load the image";
  std::int32_t answer = args.driver->module_load_data(&opened->module_, args.image->data);
  if (answer != succeeded) return answer;
  for (const Family* const family : families) {
    answer = opened->load(*family, args);
    if (answer == succeeded) continue;
    (void)opened->close();
    return answer;
  }
  args.failed = nullptr;
  set = std::move(opened);
  return succeeded;
}

std::int32_t KernelSet::load(const Family& family, headrace_kernels_open_v1& args) {
  auto functions = std::make_unique<std::byte[]>(family.functions_bytes);
  for (const FamilyKernel& kernel : family.kernels) {
    args.failed_kernel = kernel.name;
    args.failed = "find the kernel";
    void* function = nullptr;
    std::int32_t answer = driver_.module_get_function(&function, module_, kernel.name);
    if (answer != succeeded) return answer;
    args.failed = "load the kernel";
    answer = driver_.func_load(function);
    if (answer != succeeded) return answer;
    std::memcpy(functions.get() + kernel.offset, static_cast<const void*>(&function), sizeof function);
  }
  args.failed_kernel = nullptr;
  loaded_.push_back({&family, std::move(functions)});
  return succeeded;
}

}  // namespace headrace::kernels
