// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/settings.hpp"

#include "base/options.hpp"
#include "host_link/message_pipe.hpp"

#include <array>
#include <bit>

namespace headrace::shm {
namespace {

constexpr std::uint64_t least_bytes = 4096;
constexpr std::uint64_t largest_ring_bytes = 1ULL << 30;
constexpr std::uint64_t most_threads = 1024;

constexpr std::array rows{
    headrace_option_v1{"ring_bytes", "256KiB", "bytes",
                       "size of the message ring of each direction of a link, rounded up to a power of two "
                       "that holds two messages",
                       0, 0},
    headrace_option_v1{"queue_bytes", "4MiB", "bytes",
                       "messages of running requests, and those sent before a link is ready, that a link "
                       "keeps while the peer's "
                       "ring is full; beyond it a post or notify answers would_block",
                       0, 0},
    headrace_option_v1{"inline_bytes", "256KiB", "bytes",
                       "requests up to this size are carried out inside post", 0, 0},
    headrace_option_v1{"chunk_bytes", "512KiB", "bytes",
                       "larger requests are cut into pieces of at most this size, which threads share", 0, 0},
    headrace_option_v1{"stream_bytes", "8MiB", "bytes",
                       "requests of at least this size are written past the caches: quicker than memcpy "
                       "unless the data is used at once",
                       0, 0},
    headrace_option_v1{"threads", "0", "count",
                       "pool threads that work on one request beside the thread that waits for it; 0: one "
                       "less than the cores, at least 1",
                       0, 0},
    headrace_option_v1{"attach", "auto", "auto|off",
                       "cross-memory attach for memory that was registered, not allocated", 0, 0},
    headrace_option_v1{"map", "auto", "auto|off", "mapping of peers' memory that came from allocate", 0, 0},
    headrace_option_v1{"handshake_timeout", "5s", "duration", "how long a peer may take to answer a new link",
                       0, 0},
};

std::string text_of(const plugin::CreateArgs& args, const char* name) {
  const std::string_view given = args.setting(name);
  if (!given.empty()) return std::string(given);
  for (const headrace_option_v1& row : rows)
    if (std::string_view(row.name) == name) return row.default_value;
  return {};
}

Result<std::uint64_t> number(const plugin::CreateArgs& args, const char* name, std::uint64_t least,
                             std::uint64_t most) {
  auto value = parse_bytes(text_of(args, name));
  if (!value) return std::move(value).error().within(std::string("option shm.") + name);
  if (*value < least || *value > most)
    return make_error(Code::invalid_argument, "option shm.{} is {} and must be from {} to {}", name, *value,
                      least, most);
  return value;
}

Result<bool> automatic(const plugin::CreateArgs& args, const char* name) {
  const std::string text = text_of(args, name);
  if (text == "auto") return true;
  if (text == "off") return false;
  return make_error(Code::invalid_argument, "option shm.{} is \"{}\" and must be auto or off", name, text);
}

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  Settings settings;
  constexpr std::uint64_t any = UINT64_MAX;
  HEADRACE_TRY(ring_bytes, number(args, "ring_bytes", least_bytes, largest_ring_bytes));
  settings.ring_bytes = std::bit_ceil(std::max<std::uint64_t>(ring_bytes, 2 * host_link::max_message_bytes));
  HEADRACE_TRY(queue_bytes, number(args, "queue_bytes", least_bytes, any));
  settings.queue_bytes = std::max<std::uint64_t>(queue_bytes, 2 * host_link::max_message_bytes);
  HEADRACE_TRY(inline_bytes, number(args, "inline_bytes", 0, any));
  settings.inline_bytes = inline_bytes;
  HEADRACE_TRY(chunk_bytes, number(args, "chunk_bytes", least_bytes, any));
  settings.chunk_bytes = chunk_bytes;
  HEADRACE_TRY(stream_bytes, number(args, "stream_bytes", 0, any));
  settings.stream_bytes = stream_bytes;
  HEADRACE_TRY(threads, number(args, "threads", 0, most_threads));
  settings.threads = static_cast<std::uint32_t>(threads);
  HEADRACE_TRY(attach, automatic(args, "attach"));
  settings.attach = attach;
  HEADRACE_TRY(map, automatic(args, "map"));
  settings.map = map;
  auto timeout = parse_duration(text_of(args, "handshake_timeout"));
  if (!timeout) return std::move(timeout).error().within("option shm.handshake_timeout");
  settings.handshake_timeout = *timeout;
  return settings;
}

}  // namespace headrace::shm
