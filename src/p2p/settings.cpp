// SPDX-License-Identifier: Apache-2.0
#include "p2p/settings.hpp"

#include <charconv>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

namespace headrace::p2p {
namespace {

constexpr std::uint64_t most_of_32_bits = std::numeric_limits<std::uint32_t>::max();

Result<std::uint32_t> number_of(const Options& hints, const char* name, bool as_bytes) {
  std::uint64_t value = 0;
  if (as_bytes) {
    HEADRACE_TRY(bytes, hints.bytes(name));
    value = bytes;
  } else {
    HEADRACE_TRY(count, hints.integer(name));
    value = static_cast<std::uint64_t>(count);  // a negative one is too large
  }
  if (value > most_of_32_bits)
    return make_error(Code::invalid_argument, "hint {} is {}: it must be between 0 and {}", name,
                      hints.value(name)->text, most_of_32_bits);
  return static_cast<std::uint32_t>(value);
}

/// How many GPUs there are at most, and the longest part that travels as packets.
///
/// Packets wait for no fence, and put twice the bytes on each link; each rank sends them to all others, so
/// with more GPUs chunks are sooner as fast (bench/notes/collectives.md). An all_reduce of four ranks in two
/// steps travels as packets up to twice this size. More than four GPUs were not measured.
/// `bench_gpu_collectives --gpus N --packed BYTES` measures a row.
constexpr std::pair<int, std::uint32_t> packet_table[] = {
    {1, 512 << 10}, {2, 1 << 20}, {4, 512 << 10}, {16, 128 << 10}};

}  // namespace

std::uint32_t packet_bytes_for(int gpus) {
  for (const auto& [most, bytes] : packet_table)
    if (gpus <= most) return bytes;
  return std::end(packet_table)[-1].second;
}

Result<Options> default_options() {
  OptionSources sources;
  sources.scope = "p2p";
  return Options::resolve(hint_rows, sources);
}

Result<Settings> Settings::read(const headrace_comm_setup_v1& setup) {
  OptionSources sources;
  sources.scope = "p2p";
  for (std::uint64_t i = 0; i < setup.hint_count; ++i)
    sources.given[setup.hints[i].name] = setup.hints[i].value;
  auto resolved = Options::resolve(hint_rows, sources);
  if (!resolved) return std::move(resolved).error().within("hints of the communicator");
  const std::pair<const char*, std::uint32_t Settings::*> numbers[] = {
      {"blocks", &Settings::blocks},
      {"packet_bytes", &Settings::packet_bytes},
      {"chunk_bytes", &Settings::chunk_bytes},
      {"slots", &Settings::slots},
      {"copy_bytes", &Settings::copy_bytes}};
  Settings settings;
  for (const auto& [name, member] : numbers) {
    HEADRACE_TRY(number, number_of(*resolved, name, std::string_view(name).ends_with("_bytes")));
    settings.*member = number;
  }
  HEADRACE_TRY(high_priority, resolved->boolean("is_high_priority_stream"));
  settings.high_priority = high_priority;
  return settings;
}

Result<std::uint32_t> blocks_of_call(std::string_view value, std::uint32_t most) {
  std::uint32_t blocks = 0;
  const char* const end = value.data() + value.size();
  const auto [parsed, error] = std::from_chars(value.data(), end, blocks);
  if (error == std::errc() && parsed == end && blocks >= 1 && blocks <= most) return blocks;
  return make_error(Code::invalid_argument,
                    "hint blocks of a call is \"{}\": give a number between 1 and {}, the blocks that fit on "
                    "the GPUs of all ranks",
                    value, most);
}

}  // namespace headrace::p2p
