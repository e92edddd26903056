// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/settings.hpp"

#include "base/backend_options.hpp"
#include "base/errors.hpp"

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
  const BackendOptions options("posix", rows, args);
  Settings settings;
  HEADRACE_TRY(threads, options.number("threads", 1, most_threads));
  settings.threads = static_cast<std::uint32_t>(threads);
  HEADRACE_TRY(piece_bytes, options.number("piece_bytes", piece_unit, largest_piece));
  if (piece_bytes % piece_unit != 0)
    return make_error(Code::invalid_argument, "option posix.piece_bytes is {} and must be a multiple of {}",
                      piece_bytes, piece_unit);
  settings.piece_bytes = piece_bytes;
  HEADRACE_TRY(queue_depth, options.number("queue_depth", 1, deepest_queue));
  settings.queue_depth = queue_depth;
  return settings;
}

}  // namespace headrace::posix
