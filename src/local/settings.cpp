// SPDX-License-Identifier: Apache-2.0
#include "local/settings.hpp"

#include <array>

namespace headrace::local {
namespace {

constexpr std::uint64_t least_chunk_option = 4096;
constexpr std::uint64_t most_threads = 1024;

constexpr auto rows = gpu::with_move_options(std::array{
    headrace_option_v1{"inline_bytes", "256KiB", "bytes",
                       "requests up to this size are carried out inside post", 0, 0},
    headrace_option_v1{"chunk_bytes", "512KiB", "bytes",
                       "larger requests are cut into chunks of at most this size, which threads share", 0, 0},
    headrace_option_v1{"stream_bytes", "8MiB", "bytes",
                       "requests of at least this size are written past the caches: quicker than memcpy "
                       "unless the data is used at once",
                       0, 0},
    headrace_option_v1{"threads", "0", "count",
                       "pool threads that work on one request beside the thread that waits for it; 0: one "
                       "less than the cores, at least 1 and at most 15",
                       0, 0},
    headrace_option_v1{"numa", "auto", "auto|off",
                       "where there are several NUMA nodes, pool threads copy on the CPUs next to the memory "
                       "that they write",
                       0, 0},
});

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  constexpr std::uint64_t any = UINT64_MAX;
  BackendOptions options("local", rows, args);
  Settings settings;
  settings.inline_bytes = options.bytes("inline_bytes", 0, any);
  settings.chunk_bytes = options.bytes("chunk_bytes", least_chunk_option, any);
  settings.stream_bytes = options.bytes("stream_bytes", 0, any);
  settings.threads = static_cast<std::uint32_t>(options.count("threads", 0, most_threads));
  settings.numa = options.automatic("numa");
  settings.gpu = gpu::read_move_options(options);
  return options.checked(settings);
}

}  // namespace headrace::local
