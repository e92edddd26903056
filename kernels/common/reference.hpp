// SPDX-License-Identifier: Apache-2.0
// The CPU references of the kernels: what kernels are compared with, and what the fake driver runs. The build
// lists them by the folders of the families, as it lists the families.
#pragma once

#include <headrace/plugin/kernels/pages_v1.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace headrace::kernels::reference {

/// The memory of the machine that runs references.
struct Memory {
  std::function<bool(std::uint64_t address, std::uint64_t bytes)> reachable;
  void (*copy)(void* target, const void* source, std::size_t bytes) = nullptr;

  [[nodiscard]] bool reaches(std::uint64_t source, std::uint64_t target, std::uint64_t bytes) const {
    return reachable(source, bytes) && reachable(target, bytes);
  }
};

enum class Progress {
  stays,  ///< call again
  ended,
  fault,  ///< it would access memory that is not reachable
};
/// A launch of a kernel. A kernel that stays is called again until it has ended.
using Launch = std::function<Progress()>;

struct Kernel {
  const char* name;
  std::size_t argument_bytes;
  /// The argument stays until the launch has ended.
  Launch (*launch)(const void* argument, const Memory& memory);
};

/// Constant: `reference.hpp` of a family's folder x declares it as `headrace::kernels::x::reference_family`.
struct Family {
  const char* name;
  std::span<const Kernel> kernels;
};

/// The references of all families. cmake/kernels.cmake writes the list.
extern const std::span<const Family* const> families;

// ------------------------------------------------------------------ what references of several families
// share

template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

/// Reports the end of a move.
void tell_done(const headrace_move_done_v1& done);

/// A list of pages as its arguments have it.
class PagesMove {
 public:
  using Args = headrace_move_pages_v1;
  explicit PagesMove(const Args& args) : args_(args) {}

  [[nodiscard]] const headrace_move_done_v1& done() const { return args_.done; }
  /// Whether the lists and words that the arguments name are reachable.
  [[nodiscard]] bool can_be_read(const Memory& memory) const;
  /// Calls `run(source, target, bytes)` for each page, in order; for a page out of bounds it reports that.
  template <class Run>
  void each_run(const Run& run) const {
    for (std::uint64_t page = 0; page < count(); ++page)
      if (args_.bounds == 0 || is_within_bounds(page))
        run(address_of(args_.source, page), address_of(args_.target, page), args_.source.columns.page_bytes);
  }

 private:
  [[nodiscard]] std::uint64_t count() const;
  [[nodiscard]] bool is_within_bounds(std::uint64_t page) const;
  [[nodiscard]] static std::uint64_t address_of(const headrace_move_side_v1& side, std::uint64_t page);

  const Args& args_;
};

/// A launch of a kernel that moves what a `Move` names, then reports its end. Runs may not overlap one
/// another's targets, as on the GPU.
template <class Move>
Launch launch_move(const void* argument, const Memory& memory) {
  return [argument, memory] {
    const Move move(*static_cast<const typename Move::Args*>(argument));
    const headrace_move_done_v1& done = move.done();
    bool good =
        (done.word == 0 || memory.reachable(done.word, sizeof(std::uint64_t))) && move.can_be_read(memory);
    if (!good) return Progress::fault;
    move.each_run([&](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
      good = good && memory.reaches(source, target, bytes);
    });
    if (!good) return Progress::fault;
    move.each_run([&](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
      memory.copy(at<void>(target), at<const void>(source), bytes);
    });
    tell_done(done);
    return Progress::ended;
  };
}

/// The reference of the kernel `name`, by a `Move`.
template <class Move>
constexpr Kernel kernel_of(const char* name) {
  return {name, sizeof(typename Move::Args), &launch_move<Move>};
}

}  // namespace headrace::kernels::reference
