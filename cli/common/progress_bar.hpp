// SPDX-License-Identifier: Apache-2.0
// A progress bar, redrawn in place on stderr. It prints nothing if stderr is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace headrace::cli {

class ProgressBar {
 public:
  /// `already_bytes` of `total_bytes` were done before; they do not count for the rate.
  ProgressBar(std::string what, std::uint64_t total_bytes, std::uint64_t already_bytes = 0);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Draws, at most ten times a second.
  void show(std::uint64_t done_bytes);
  /// Removes the line, so that other output can be printed.
  void clear();

 private:
  const std::string what_;
  const std::uint64_t total_, already_;
  const bool on_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_, last_{};
};

/// The line for a terminal of `columns`: "reading [####    ] 45 %, 1.2 GB/s, 3.4 s left".
[[nodiscard]] std::string progress_line(const std::string& what, std::uint64_t done, std::uint64_t total,
                                        double bytes_per_second, std::size_t columns);

}  // namespace headrace::cli
