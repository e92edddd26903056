// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/settings.hpp"

#include "base/options.hpp"

#include <array>
#include <string>

namespace headrace::cuda_ipc {
namespace {

constexpr std::array rows{
    headrace_option_v1{"multiprocessors", "32", "count",
                       "of the GPU that a kernel may occupy; 0: all. On H200 32 of 132 move 99 % of what all "
                       "do, 16 move 97 %",
                       0, 0},
    headrace_option_v1{"few_bytes", "64KiB", "bytes",
                       "lists of at most 8 parts and so many bytes travel inside the launch, without a table",
                       0, 0},
    headrace_option_v1{"copy_engine_bytes", "1", "bytes",
                       "what lies in one stretch on both sides and is at least so long goes by copy engine",
                       0, 0},
};

constexpr std::uint64_t most_multiprocessors = 4096;

Result<std::uint64_t> number(const plugin::CreateArgs& args, const headrace_option_v1& row,
                             std::uint64_t most) {
  const std::string_view given = args.setting(row.name);
  auto value = parse_bytes(std::string(given.empty() ? row.default_value : given));
  if (!value) return std::move(value).error().within(std::string("option cuda_ipc.") + row.name);
  if (*value > most)
    return make_error(Code::invalid_argument, "option cuda_ipc.{} is {} and must be at most {}", row.name,
                      *value, most);
  return value;
}

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<gpu::MoveSettings> read_settings(const plugin::CreateArgs& args) {
  gpu::MoveSettings settings;
  HEADRACE_TRY(multiprocessors, number(args, rows[0], most_multiprocessors));
  settings.multiprocessors = static_cast<std::uint32_t>(multiprocessors);
  HEADRACE_TRY(few_bytes, number(args, rows[1], UINT64_MAX));
  settings.few_bytes = few_bytes;
  HEADRACE_TRY(copy_engine_bytes, number(args, rows[2], UINT64_MAX));
  settings.copy_engine_bytes = copy_engine_bytes;
  return settings;
}

}  // namespace headrace::cuda_ipc
