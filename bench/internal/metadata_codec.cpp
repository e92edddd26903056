// SPDX-License-Identifier: Apache-2.0
// How long metadata takes to write and to read, and how many bytes a region costs.
#include "wire/metadata.hpp"

#include <benchmark/benchmark.h>

namespace headrace::wire {
namespace {

/// Pages of one buffer, registered in a row.
Metadata in_a_row(std::size_t regions) {
  Metadata m;
  m.name = "prefill-0";
  m.incarnation = 1;
  m.version = 1;
  m.end = 2 * regions + 1;
  m.backends = {{"shm", "0.1", std::string(64, 'i')}, {"tcp", "0.1", std::string(64, 'i')}};
  for (std::size_t i = 0; i < regions; ++i) {
    m.ids.push_back(static_cast<std::uint32_t>(i + 1));
    m.addresses.push_back(0x7f0000000000 + i * 65536);
    m.lengths.push_back(65536);
    m.kinds.push_back(0);
    m.masks.push_back(3);
  }
  return m;
}

/// Nothing alike: gaps in the ids, lengths, kinds and masks of all sorts.
Metadata scattered(std::size_t regions) {
  Metadata m = in_a_row(regions);
  for (std::size_t i = 0; i < regions; ++i) {
    m.ids[i] = static_cast<std::uint32_t>(2 * i + 1);
    m.lengths[i] = 4096 + i;
    m.kinds[i] = static_cast<std::uint8_t>(i % 2);
    m.masks[i] = static_cast<std::uint16_t>(i % 4);
  }
  return m;
}

/// Each region with a name and a note of its own.
Metadata named(std::size_t regions) {
  Metadata m = scattered(regions);
  for (std::size_t i = 0; i < regions; ++i)
    m.named.push_back({m.ids[i], "layers." + std::to_string(i) + ".weight", "bf16 4096x4096"});
  return m;
}

template <Metadata (*Make)(std::size_t)>
void encode_metadata(benchmark::State& state) {
  const Metadata m = Make(static_cast<std::size_t>(state.range(0)));
  std::size_t bytes = 0;
  for (auto _ : state) bytes = encode(m)->size();
  state.counters["bytes/region"] = static_cast<double>(bytes) / static_cast<double>(state.range(0));
}

template <Metadata (*Make)(std::size_t)>
void decode_metadata(benchmark::State& state) {
  const std::string bytes = *encode(Make(static_cast<std::size_t>(state.range(0))));
  for (auto _ : state) benchmark::DoNotOptimize(decode(bytes)->ids.data());
  state.counters["bytes/region"] = static_cast<double>(bytes.size()) / static_cast<double>(state.range(0));
}

BENCHMARK(encode_metadata<in_a_row>)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_metadata<in_a_row>)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_metadata<scattered>)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_metadata<scattered>)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_metadata<named>)->Arg(100'000)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_metadata<named>)->Arg(100'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace headrace::wire

BENCHMARK_MAIN();
