// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/settings.hpp"

#include "base/backend_options.hpp"

#include <array>

namespace headrace::posix {
namespace {

// A multiple of every alignment that a device requires with O_DIRECT: pages cut at multiples of it stay
// aligned.
constexpr std::uint64_t piece_unit = 64 * 1024;
constexpr std::uint64_t largest_piece = 1ULL << 30;
constexpr std::uint64_t most_threads = 1024;
constexpr std::uint64_t deepest_queue = 1ULL << 24;

constexpr std::array rows{
    headrace_option_v1{"threads", "8", "count",
                       "threads of an agent that read and write files; they start with the first request", 0,
                       0},
    headrace_option_v1{
        "piece_bytes", "1MiB", "bytes",
        "requests are cut into pieces of about this size, which threads share; a multiple of 64KiB", 0, 0},
    headrace_option_v1{"queue_depth", "65536", "count",
                       "pieces of work that may wait for a thread; beyond it a post answers would_block", 0,
                       0},
};

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  BackendOptions options("posix", rows, args);
  Settings settings;
  settings.threads = static_cast<std::uint32_t>(options.count("threads", 1, most_threads));
  settings.piece_bytes = options.bytes("piece_bytes", piece_unit, largest_piece);
  if (settings.piece_bytes % piece_unit != 0) options.refuse("piece_bytes", "a multiple of 64KiB");
  settings.queue_depth = options.count("queue_depth", 1, deepest_queue);
  return options.checked(settings);
}

}  // namespace headrace::posix
