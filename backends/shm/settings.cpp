// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/settings.hpp"

#include "base/options.hpp"

#include <array>
#include <bit>

namespace headrace::shm {
namespace {

constexpr std::uint64_t largest_ring_bytes = 1ULL << 30;
constexpr std::uint64_t smallest_chunk_bytes = 4096;

constexpr std::array rows{
    headrace_option_v1{"ring_bytes", "256KiB", "bytes",
                       "size of the message ring of each direction of a link", 0, 0},
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

Result<std::uint64_t> bytes(const plugin::CreateArgs& args, const char* name) {
  auto value = parse_bytes(text_of(args, name));
  if (!value) return std::move(value).error().within(std::string("option shm.") + name);
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
  HEADRACE_TRY(ring_bytes, bytes(args, "ring_bytes"));
  if (ring_bytes > largest_ring_bytes) {
    return make_error(Code::invalid_argument, "option shm.ring_bytes is {} and may be at most {}", ring_bytes,
                      largest_ring_bytes);
  }
  settings.ring_bytes = std::bit_ceil(std::max<std::uint64_t>(ring_bytes, 2 * max_message_bytes));
  HEADRACE_TRY(queue_bytes, bytes(args, "queue_bytes"));
  settings.queue_bytes = std::max<std::uint64_t>(queue_bytes, 2 * max_message_bytes);
  HEADRACE_TRY(inline_bytes, bytes(args, "inline_bytes"));
  settings.inline_bytes = inline_bytes;
  HEADRACE_TRY(chunk_bytes, bytes(args, "chunk_bytes"));
  settings.chunk_bytes = std::max(chunk_bytes, smallest_chunk_bytes);
  HEADRACE_TRY(stream_bytes, bytes(args, "stream_bytes"));
  settings.stream_bytes = stream_bytes;
  HEADRACE_TRY(threads, bytes(args, "threads"));
  settings.threads = static_cast<std::uint32_t>(std::min<std::uint64_t>(threads, 4096));
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
