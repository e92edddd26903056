// SPDX-License-Identifier: Apache-2.0
#include "cli/common/progress_bar.hpp"

#include "cli/common/text.hpp"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace headrace::cli {
namespace {

constexpr auto redraw_interval = std::chrono::milliseconds(100);

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return std::min<std::size_t>(size.ws_col, line_width);
}

}  // namespace

std::string progress_line(const std::string& what, std::uint64_t done, std::uint64_t total,
                          double bytes_per_second, std::size_t columns) {
  const double share = total == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  std::string numbers = fmt::format("{:3.0f} %", share * 100);
  if (bytes_per_second > 0) {
    numbers += fmt::format(", {}/s", amount_text(static_cast<std::uint64_t>(bytes_per_second)));
    const double left = static_cast<double>(total - std::min(done, total)) / bytes_per_second;
    if (left < 360'000) numbers += fmt::format(", {} left", seconds_text(left));
  }
  // One column stays free: in the last one some terminals wrap the line.
  const std::size_t fixed = what.size() + numbers.size() + 4;
  if (columns < fixed + 11) return shorten(fmt::format("{} {}", what, numbers), columns - 1);
  const std::size_t cells = std::min<std::size_t>(columns - 1 - fixed, 50);
  const auto full = static_cast<std::size_t>(share * static_cast<double>(cells));
  return fmt::format("{} [{}{}] {}", what, std::string(full, '#'), std::string(cells - full, ' '), numbers);
}

ProgressBar::ProgressBar(std::string what, std::uint64_t total_bytes, std::uint64_t already_bytes)
    : what_(std::move(what)),
      total_(total_bytes),
      already_(already_bytes),
      on_(::isatty(STDERR_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()) {}

void ProgressBar::show(std::uint64_t done_bytes) {
  if (!on_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < redraw_interval) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate =
      seconds < 0.05 ? 0 : static_cast<double>(done_bytes - std::min(done_bytes, already_)) / seconds;
  const std::string line = progress_line(what_, done_bytes, total_, rate, terminal_columns());
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
  last_ = now;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace headrace::cli
