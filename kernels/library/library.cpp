// SPDX-License-Identifier: Apache-2.0
#include "kernels/library/library.hpp"

#include "kernels/common/kernel_set.hpp"

#include <headrace/version.hpp>

#include <memory>
#include <string_view>

namespace headrace::kernels {
namespace {

std::int32_t open(headrace_kernels_open_v1* args, void** kernels) {
  if (args->struct_size < sizeof *args) return invalid_value;
  args->failed = "read the arguments";
  args->failed_kernel = nullptr;
  if (args->driver == nullptr || args->image == nullptr || args->multiprocessors == 0) return invalid_value;
  std::unique_ptr<KernelSet> set;
  const std::int32_t answer = KernelSet::open(*args, families, set);
  if (answer == succeeded) *kernels = set.release();
  return answer;
}

std::int32_t close(void* kernels) {
  const std::unique_ptr<KernelSet> set(static_cast<KernelSet*>(kernels));
  return set->close();
}

const headrace_kernel_family_v1* find_family(const char* name, std::uint32_t version) {
  for (const Family* const family : families)
    if (std::string_view(family->name) == name)
      return family->table->version >= version ? family->table : nullptr;
  return nullptr;
}

}  // namespace

headrace_kernels_v1 make_table(const headrace_kernel_image_v1* images, std::uint64_t count) {
  headrace_kernels_v1 table{};
  table.struct_size = sizeof table;
  table.abi_major = HEADRACE_KERNELS_ABI_MAJOR;
  table.abi_minor = HEADRACE_KERNELS_ABI_MINOR;
  table.version = HEADRACE_VERSION;
  table.images = images;
  table.image_count = count;
  table.open = open;
  table.close = close;
  table.family = find_family;
  return table;
}

}  // namespace headrace::kernels
