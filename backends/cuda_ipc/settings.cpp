// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/settings.hpp"

#include "base/errors.hpp"
#include "base/options.hpp"
#include "host_link/message_pipe.hpp"

#include <algorithm>
#include <array>
#include <bit>
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
    headrace_option_v1{"host_copy_bytes", "4MiB", "bytes",
                       "to and from host memory, at most 64 stretches that are all at least so long go by copy engine",
                       0, 0},
    headrace_option_v1{
        "ring_bytes", "256KiB", "bytes",
        "size of the message ring of each direction of a link, rounded up to a power of two that "
        "holds two messages",
        0, 0},
    headrace_option_v1{
        "queue_bytes", "4MiB", "bytes",
        "messages of running requests, and those sent before a link is ready, that a link keeps "
        "while the peer's ring is full; beyond it a post or notify answers would_block",
        0, 0},
    headrace_option_v1{"handshake_timeout", "5s", "duration", "how long a peer may take to answer a new link",
                       0, 0},
};

constexpr std::uint64_t least_bytes = 4096;
constexpr std::uint64_t largest_ring_bytes = 1ULL << 30;
constexpr std::uint64_t most_multiprocessors = 4096;

std::string text_of(const plugin::CreateArgs& args, const headrace_option_v1& row) {
  const std::string_view given = args.setting(row.name);
  return std::string(given.empty() ? row.default_value : given);
}

Result<std::uint64_t> number(const plugin::CreateArgs& args, const headrace_option_v1& row,
                             std::uint64_t least, std::uint64_t most) {
  auto value = parse_bytes(text_of(args, row));
  if (!value) return std::move(value).error().within(std::string("option cuda_ipc.") + row.name);
  if (*value < least || *value > most)
    return make_error(Code::invalid_argument, "option cuda_ipc.{} is {} and must be from {} to {}", row.name,
                      *value, least, most);
  return value;
}

Result<gpu::MoveSettings> read_moves(const plugin::CreateArgs& args) {
  gpu::MoveSettings settings;
  HEADRACE_TRY(multiprocessors, number(args, rows[0], 0, most_multiprocessors));
  settings.multiprocessors = static_cast<std::uint32_t>(multiprocessors);
  HEADRACE_TRY(few_bytes, number(args, rows[1], 0, UINT64_MAX));
  settings.few_bytes = few_bytes;
  HEADRACE_TRY(copy_engine_bytes, number(args, rows[2], 0, UINT64_MAX));
  settings.copy_engine_bytes = copy_engine_bytes;
  HEADRACE_TRY(host_copy_bytes, number(args, rows[3], 0, UINT64_MAX));
  settings.host_copy_bytes = host_copy_bytes;
  return settings;
}

Result<host_link::LinkSettings> read_links(const plugin::CreateArgs& args) {
  constexpr std::uint64_t two_messages = 2 * host_link::max_message_bytes;
  host_link::LinkSettings settings;
  HEADRACE_TRY(ring_bytes, number(args, rows[4], least_bytes, largest_ring_bytes));
  settings.ring_bytes = std::bit_ceil(std::max(ring_bytes, two_messages));
  HEADRACE_TRY(queue_bytes, number(args, rows[5], least_bytes, UINT64_MAX));
  settings.queue_bytes = std::max(queue_bytes, two_messages);
  auto timeout = parse_duration(text_of(args, rows[6]));
  if (!timeout) return std::move(timeout).error().within("option cuda_ipc.handshake_timeout");
  settings.handshake_timeout = *timeout;
  return settings;
}

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  HEADRACE_TRY(moves, read_moves(args));
  HEADRACE_TRY(links, read_links(args));
  return Settings{moves, links};
}

}  // namespace headrace::cuda_ipc
