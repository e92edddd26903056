// SPDX-License-Identifier: Apache-2.0
// A tool of a profiler in this process, which takes the place of Nsight Systems.
#pragma once

#include "telemetry/nvtx.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {

struct SeenRange {
  std::string name;
  int ends = 0;
};

/// What the tool was told. One for the process, as the tool is.
class Timeline {
 public:
  static Timeline& one() {
    static Timeline timeline;
    return timeline;
  }
  std::uint64_t start(const char* name) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace(++last_, SeenRange{name});
    return last_;
  }
  void end(std::uint64_t range) {
    const std::lock_guard lock(mutex_);
    ++ranges_[range].ends;
  }
  std::vector<SeenRange> take() {
    const std::lock_guard lock(mutex_);
    std::vector<SeenRange> all;
    for (auto& [number, range] : ranges_) all.push_back(std::move(range));
    ranges_.clear();
    return all;
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, SeenRange> ranges_;
};

/// As tools do it, by the layout of nvtxTypes.h.
inline int attach_tool(nvtx::GetTable get_table) {
  using Function = void (*)();
  struct Callbacks {
    std::size_t struct_size;
    int (*get_functions)(int module, Function*** table, unsigned* last);
  };
  const auto* const callbacks = static_cast<const Callbacks*>(get_table(1));
  Function** table = nullptr;
  unsigned last = 0;
  if (get_table(2) != nullptr || get_table(3) == nullptr || callbacks->get_functions(2, &table, &last) != 0 ||
      callbacks->get_functions(1, &table, &last) != 1 || last != 15)
    return 0;
  *table[5] = reinterpret_cast<Function>(
      +[](const char* name) -> std::uint64_t { return Timeline::one().start(name); });
  *table[7] = reinterpret_cast<Function>(+[](std::uint64_t range) { Timeline::one().end(range); });
  return 1;
}

}  // namespace headrace::test
