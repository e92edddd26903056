// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels/ for the fake driver: their CPU references under their names, and an image to load.
#pragma once

#include "kernels/courier/reference.hpp"
#include "kernels/gather_scatter/reference.hpp"
#include "kernels/grids/reference.hpp"
#include "kernels/library.hpp"
#include "support/fake_cuda.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>

namespace headrace::cuda {

/// The fields of a kernel's argument that describe the pages and the completion. For most kernels that is the
/// argument itself.
template <class Args>
const Args& pages_of(const Args& args) {
  return args;
}
inline const headrace_move_pages_v1& pages_of(const kernels::GridLaunch& args) { return args.pages; }

inline void copy_bytes(void* target, const void* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

/// The courier. Each call moves all jobs of the ring with `copy`.
inline void add_reference_courier(FakeCuda& fake, decltype(copy_bytes)* copy = copy_bytes) {
  fake.add_staying_kernel(
      "headrace_courier", sizeof(headrace_courier_v1), [&fake, copy](const void* argument) {
        const auto& args = *static_cast<const headrace_courier_v1*>(argument);
        auto courier = std::make_shared<kernels::reference::Courier>(args);
        const bool good = fake.reachable(args.told, sizeof(headrace_courier_told_v1)) &&
                          fake.reachable(args.jobs, HEADRACE_COURIER_SLOTS * sizeof(headrace_courier_job_v1));
        return FakeCuda::Staying([&fake, copy, courier, good]() -> std::optional<Outcome> {
          bool reached = good;
          while (reached) {
            const bool leaves = courier->must_leave();
            const auto job = leaves ? std::nullopt : courier->look();
            if (!leaves && !job) return {};
            if (leaves || (*job)[0] == 0) {
              courier->tell_left();
              return Outcome::success;
            }
            kernels::reference::each_part(*job, [&](std::uint64_t source, std::uint64_t target,
                                                    std::uint64_t bytes) {
              reached = reached && fake.reachable(source, bytes) && fake.reachable(target, bytes);
              if (reached)
                copy(kernels::reference::at<void>(target), kernels::reference::at<const void>(source), bytes);
            });
            if (reached) courier->tell_finished();
          }
          return Outcome::illegal_address;
        });
      });
}

/// A courier that leaves at once, as if each job had come right after its last poll.
inline void add_courier_that_leaves(FakeCuda& fake) {
  fake.add_kernel("headrace_courier", sizeof(headrace_courier_v1), [](const void* argument) {
    kernels::reference::Courier(*static_cast<const headrace_courier_v1*>(argument)).tell_left();
    return Outcome::success;
  });
}

/// Every kernel runs its CPU reference. A kernel that would access forbidden memory ends with
/// illegal_address.
inline void add_reference_kernels(FakeCuda& fake) {
  const auto add = [&fake]<class Args>(const char* name, Args) {
    fake.add_kernel(name, sizeof(Args), [&fake](const void* argument) {
      const Args& args = *static_cast<const Args*>(argument);
      const auto& pages = pages_of(args);
      bool good = pages.done.word == 0 || fake.reachable(pages.done.word, sizeof(std::uint64_t));
      if constexpr (std::is_same_v<std::decay_t<decltype(pages)>, headrace_move_pages_v1>) {
        const std::uint64_t columns = pages.count * sizeof(std::uint32_t);
        for (const auto* side : {&pages.source, &pages.target})
          good = good && (side->indices == 0 || fake.reachable(side->indices, columns)) &&
                 (side->base_of == 0 || fake.reachable(side->base_of, columns));
        if (pages.bounds != 0)
          good = good && fake.reachable(pages.bounds, sizeof(headrace_move_bounds_v1)) &&
                 fake.reachable(pages.refused, sizeof(std::uint64_t));
      }
      if (!good) return Outcome::illegal_address;
      kernels::reference::each_part(
          args, [&](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
            good = good && fake.reachable(source, bytes) && fake.reachable(target, bytes);
          });
      if (!good) return Outcome::illegal_address;
      kernels::reference::move(args);
      return Outcome::success;
    });
  };
  add("headrace_move_aligned_pages", headrace_move_pages_v1{});
  add("headrace_move_small_pages", headrace_move_pages_v1{});
  add("headrace_move_row_pages", headrace_move_pages_v1{});
  add("headrace_move_any_pages", headrace_move_pages_v1{});
  add("headrace_move_checked_aligned_pages", headrace_move_pages_v1{});
  add("headrace_move_checked_small_pages", headrace_move_pages_v1{});
  add("headrace_move_checked_row_pages", headrace_move_pages_v1{});
  add("headrace_move_checked_any_pages", headrace_move_pages_v1{});
  add("headrace_move_grid_tiles", kernels::GridLaunch{});
  add("headrace_move_grid_small", kernels::GridLaunch{});
  add("headrace_move_grid_aligned", kernels::GridLaunch{});
  add("headrace_move_grid_any", kernels::GridLaunch{});
  add("headrace_move_checked_grid_tiles", kernels::GridLaunch{});
  add("headrace_move_checked_grid_small", kernels::GridLaunch{});
  add("headrace_move_checked_grid_aligned", kernels::GridLaunch{});
  add("headrace_move_checked_grid_any", kernels::GridLaunch{});
  add("headrace_move_parts", headrace_move_parts_v1{});
  add("headrace_move_few", headrace_move_few_v1{});
  add("headrace_move_one", kernels::OnePart{});
  add_reference_courier(fake);
}

/// The launchers of kernels/ over one image, for compute capability 9.0 only (the fake's default GPU).
inline const headrace_kernels_v1& fake_kernels_table() {
  static constexpr char image[] = "FAKE";
  static const headrace_kernel_image_v1 images[] = {{"sm_90a", 9, 0, 1, 0, image, sizeof image}};
  static const headrace_kernels_v1 table = kernels::make_table(images, 1);
  return table;
}

}  // namespace headrace::cuda
