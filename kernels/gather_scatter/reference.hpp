// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU.
#pragma once

#include "kernels/common/reference.hpp"
#include "kernels/gather_scatter/one_run.cuh"

#include <headrace/plugin/kernels/gather_scatter_v1.h>

namespace headrace::kernels::gather_scatter {

extern const reference::Family reference_family;

/// A list of runs as its arguments have it.
class RunsMove {
 public:
  using Args = headrace_move_runs_v1;
  explicit RunsMove(const Args& args) : args_(args) {}

  [[nodiscard]] const headrace_move_done_v1& done() const { return args_.done; }
  [[nodiscard]] bool can_be_read(const reference::Memory& memory) const {
    return memory.reachable(args_.sources, args_.count * sizeof(std::uint64_t)) &&
           memory.reachable(args_.targets, args_.count * sizeof(std::uint64_t)) &&
           memory.reachable(args_.lengths, args_.count * sizeof(std::uint32_t));
  }
  template <class Run>
  void each_run(const Run& run) const {
    for (std::uint64_t i = 0; i < args_.count; ++i)
      run(args_.source_base + reference::at<const std::uint64_t>(args_.sources)[i],
          args_.target_base + reference::at<const std::uint64_t>(args_.targets)[i],
          std::uint64_t{reference::at<const std::uint32_t>(args_.lengths)[i]});
  }

 private:
  const Args& args_;
};

/// A few runs, which are inside the arguments.
class FewMove {
 public:
  using Args = headrace_move_few_v1;
  explicit FewMove(const Args& args) : args_(args) {}

  [[nodiscard]] const headrace_move_done_v1& done() const { return args_.done; }
  [[nodiscard]] static bool can_be_read(const reference::Memory&) { return true; }
  template <class Run>
  void each_run(const Run& run) const {
    for (std::uint64_t i = 0; i < args_.count; ++i) run(args_.sources[i], args_.targets[i], args_.lengths[i]);
  }

 private:
  const Args& args_;
};

class OneMove {
 public:
  using Args = OneRun;
  explicit OneMove(const Args& args) : args_(args) {}

  [[nodiscard]] const headrace_move_done_v1& done() const { return args_.done; }
  [[nodiscard]] static bool can_be_read(const reference::Memory&) { return true; }
  template <class Run>
  void each_run(const Run& run) const {
    run(args_.source, args_.target, args_.bytes);
  }

 private:
  const Args& args_;
};

}  // namespace headrace::kernels::gather_scatter
