// SPDX-License-Identifier: Apache-2.0
// Ranges in the timeline of a profiler, by the interface of NVTX 3: the variable NVTX_INJECTION64_PATH names
// a library of the tool (Nsight Systems sets it), which fills in a table of functions. Its headers are not
// needed, and without a tool a range is a look at a pointer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::nvtx {

/// What a tool's library exports as InitializeInjectionNvtx2; 1: it is there. `get_table` gives the tables by
/// number.
using GetTable = const void* (*)(std::uint32_t number);
using Initialize = int (*)(GetTable get_table);

/// Loads the tool of this process, at the first call. Without one it does nothing.
void load();
/// Lets a tool fill in the table. Of the process, like tools: for tests, and for `load`.
void attach(Initialize initialize);

/// "headrace: " and the name. Ranges may overlap, and end on another thread. 0: there is no tool.
[[nodiscard]] std::uint64_t start_range(const std::string& name);
void end_range(std::uint64_t range);

/// The range of a call, "headrace: moe dispatch": it ends with this object.
class CallRange {
 public:
  CallRange(std::string_view of, std::string_view call);
  ~CallRange() { end_range(range_); }
  CallRange(const CallRange&) = delete;
  CallRange& operator=(const CallRange&) = delete;

 private:
  const std::uint64_t range_;
};

}  // namespace headrace::nvtx
