// SPDX-License-Identifier: Apache-2.0
#include "kernels/library.hpp"

#include "kernels/courier/courier.hpp"
#include "kernels/gather_scatter/gather_scatter.hpp"
#include "kernels/grids/grids.hpp"
#include "kernels/launch.hpp"

#include <headrace/version.hpp>

#include <memory>

namespace headrace::kernels {
namespace {

struct Wanted {
  const char* name;
  const char* failed;
  void* KernelSet::*place;
};

constexpr Wanted wanted[] = {
    {"headrace_move_aligned_pages", "find the kernel headrace_move_aligned_pages",
     &KernelSet::move_aligned_pages},
    {"headrace_move_small_pages", "find the kernel headrace_move_small_pages", &KernelSet::move_small_pages},
    {"headrace_move_row_pages", "find the kernel headrace_move_row_pages", &KernelSet::move_row_pages},
    {"headrace_move_any_pages", "find the kernel headrace_move_any_pages", &KernelSet::move_any_pages},
    {"headrace_move_parts", "find the kernel headrace_move_parts", &KernelSet::move_parts},
    {"headrace_move_few", "find the kernel headrace_move_few", &KernelSet::move_few},
    {"headrace_move_one", "find the kernel headrace_move_one", &KernelSet::move_one},
    {"headrace_courier", "find the kernel headrace_courier", &KernelSet::courier},
    {"headrace_move_checked_aligned_pages", "find the kernel headrace_move_checked_aligned_pages",
     &KernelSet::move_checked_aligned_pages},
    {"headrace_move_checked_small_pages", "find the kernel headrace_move_checked_small_pages",
     &KernelSet::move_checked_small_pages},
    {"headrace_move_checked_row_pages", "find the kernel headrace_move_checked_row_pages",
     &KernelSet::move_checked_row_pages},
    {"headrace_move_checked_any_pages", "find the kernel headrace_move_checked_any_pages",
     &KernelSet::move_checked_any_pages},
    {"headrace_move_grid_tiles", "find the kernel headrace_move_grid_tiles", &KernelSet::move_grid_tiles},
    {"headrace_move_grid_small", "find the kernel headrace_move_grid_small", &KernelSet::move_grid_small},
    {"headrace_move_grid_aligned", "find the kernel headrace_move_grid_aligned",
     &KernelSet::move_grid_aligned},
    {"headrace_move_grid_any", "find the kernel headrace_move_grid_any", &KernelSet::move_grid_any},
    {"headrace_move_checked_grid_tiles", "find the kernel headrace_move_checked_grid_tiles",
     &KernelSet::move_checked_grid_tiles},
    {"headrace_move_checked_grid_small", "find the kernel headrace_move_checked_grid_small",
     &KernelSet::move_checked_grid_small},
    {"headrace_move_checked_grid_aligned", "find the kernel headrace_move_checked_grid_aligned",
     &KernelSet::move_checked_grid_aligned},
    {"headrace_move_checked_grid_any", "find the kernel headrace_move_checked_grid_any",
     &KernelSet::move_checked_grid_any},
};

std::int32_t find_all(KernelSet& set, const char*& failed) {
  for (const Wanted& kernel : wanted) {
    failed = kernel.failed;
    void*& function = set.*kernel.place;
    if (const auto answer = set.driver->module_get_function(&function, set.module, kernel.name);
        answer != succeeded)
      return answer;
    failed = "load a kernel";
    if (const auto answer = set.driver->func_load(function); answer != succeeded) return answer;
  }
  return succeeded;
}

std::int32_t open(headrace_kernels_open_v1* args, void** kernels) {
  args->failed = "read the arguments";
  if (args->struct_size < sizeof *args || args->image == nullptr || args->multiprocessors == 0)
    return invalid_value;
  auto set = std::make_unique<KernelSet>();
  set->driver = args->driver;
  set->multiprocessors = args->multiprocessors;
  args->failed = "load the image";
  if (const auto answer = args->driver->module_load_data(&set->module, args->image->data);
      answer != succeeded)
    return answer;
  if (const auto answer = find_all(*set, args->failed); answer != succeeded) {
    args->driver->module_unload(set->module);
    return answer;
  }
  args->failed = nullptr;
  *kernels = set.release();
  return succeeded;
}

std::int32_t close(void* kernels) {
  const std::unique_ptr<KernelSet> set(static_cast<KernelSet*>(kernels));
  return set->driver->module_unload(set->module);
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
  table.move_pages = move_pages;
  table.move_parts = move_parts;
  table.move_few = move_few;
  table.move_grids = move_grids;
  table.run_courier = run_courier;
  return table;
}

}  // namespace headrace::kernels
