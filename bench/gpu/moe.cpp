// SPDX-License-Identifier: Apache-2.0
// The kernel family moe on a GPU that several ranks share: its answers compared with the CPU reference, then
// its times in turn with bare kernels (bench/gpu/moe_kernels.cu).
//
//   bench_gpu_moe [check] [quick] [soak] [time]
//                 [--seconds N] [--seed N] [--ranks N] [--replays N] [--most TOKENS] [--full 1]
//                 [--before LIBRARY]
//
// check  random shapes, layouts, types and steps of 1 to 8 ranks, for --seconds (60); a mask; an abort; a
//        rank that never comes; routings that are used again
// quick  a few of the small ones, for compute-sanitizer
// soak   --replays (10000) replays of graphs of 3 ranks, whose tokens, experts and counts change in each
// time   dispatch and combine in a graph, of `--ranks` ranks (4), up to --most tokens (8192). Two rows a
//        figure, of the table moe-gpu1: beside a bare kernel that moves each row to where it shall be, and
//        beside two that move it by way of the slots of windows, as ours do. --full 1: more numbers of tokens
//
//        --before LIBRARY: a third row, beside the kernels of another libheadrace_kernels.so, in the same
//        turns
//
// Ranks are streams of this process. It ends at the first difference.
#include "kernels/moe/moe.hpp"

#include "gpu/event.hpp"
#include "support/moe_gpu_machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>

// Written by cmake/kernels.cmake from moe_kernels.cu.
extern "C" const headrace_kernel_image_v1 headrace_bare_moe_images[];
extern "C" const uint64_t headrace_bare_moe_image_count;

namespace {

using namespace headrace;
using namespace headrace::moe_steps;
using namespace std::chrono_literals;
using cuda::Address;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t patience_ns = 20'000'000'000;

struct Settings {
  bool checks = false, quick = false, soaks = false, times = false, full = false;
  int seconds = 60, ranks = 4, replays = 10000, most_tokens = 8192;
  std::uint64_t seed = std::random_device()();
  std::string before;
};

[[noreturn]] void end_with(const std::string& text) {
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", text);
  std::fflush(stderr);
  std::_Exit(1);
}

struct Gpu {
  std::shared_ptr<const gpu::Device> device;
  std::shared_ptr<const gpu::Kernels> kernels, before;  ///< before: null if there is nothing to compare with
};

// ------------------------------------------------------------------ check

void expect_same(const std::string& differs, const MoEConfig& config, std::string_view what) {
  if (differs.empty()) return;
  end_with(
      fmt::format("{}: {}\n{} ranks in groups of {}, {} experts, top {}, hidden {}, types {} and {}, {} "
                  "tokens, layout {}, "
                  "budget {}",
                  what, differs, config.ranks, config.group_size, config.experts, config.top_k, config.hidden,
                  dtype_name(config.dtype), dtype_name(config.combine_dtype), config.max_tokens,
                  moe_layout_name(config.layout), config.row_budget));
}

/// Blocks of each of so many ranks that are on the GPU at once.
std::uint32_t some_blocks(Random& random, const GpuMachine& machine, int ranks) {
  return 1 +
         static_cast<std::uint32_t>(below(random, std::min<std::int64_t>(machine.most_blocks(ranks), 24)));
}

void check_steps(GpuMachine& machine, const Settings& settings) {
  const auto begin = Clock::now();
  std::uint64_t seed = settings.seed;
  int cases = 0;
  for (; Clock::now() - begin < std::chrono::seconds(settings.seconds) && (!settings.quick || cases < 6);
       ++seed, ++cases) {
    Random random(seed);
    machine.clear();
    const std::int64_t most_tokens = settings.quick ? 24 : seed % 4 == 0 ? 600 : 80;
    MoEConfig config = random_config(random, settings.quick ? 3 : 8, most_tokens, 100);
    const std::int64_t rows = config.ranks * config.max_tokens * config.top_k;
    if (rows * config.hidden > std::int64_t{1} << 20) config.hidden = 64;  // the reference takes its time
    Ranks ranks(machine, config, some_blocks(random, machine, config.ranks), patience_ns);
    for (int i = 0; i < 3; ++i) {
      const Step step(random, config, static_cast<Choice>(below(random, choices)));
      expect_same(run_step(machine, ranks, step, below(random, 2) == 0), config,
                  fmt::format("seed {}, step {}", seed, i));
    }
  }
  fmt::print("{} random shapes from seed {} on, three steps each, are right, {:.1f} s\n", cases,
             settings.seed, std::chrono::duration<double>(Clock::now() - begin).count());
}

MoEConfig small_config(int ranks) {
  MoEConfig config;
  config.ranks = ranks;
  config.experts = 8 * ranks, config.top_k = 4;
  config.hidden = 256, config.max_tokens = 64;
  return config;
}

void expect_status(Ranks& ranks, int rank, std::uint64_t reason, std::uint32_t peer, std::string_view what) {
  headrace_moe_status_v1& seen = ranks.status(rank);
  if (__atomic_load_n(&seen.reason, __ATOMIC_ACQUIRE) != reason || seen.peer != peer)
    end_with(fmt::format("{}: rank {} has status {}, peer {}, awaited {}, number {}, expected {}, seen {}",
                         what, rank, seen.reason, seen.peer, seen.awaited, seen.number, seen.expected,
                         seen.seen));
  __atomic_store_n(&seen.reason, 0, __ATOMIC_RELEASE);
}

/// Rank 1 never comes: the others say so, and go on without it.
void check_lost_rank(GpuMachine& machine, Random& random) {
  const MoEConfig config = small_config(3);
  machine.clear();
  Ranks ranks(machine, config, 4, 50'000'000);
  expect_same(run_step(machine, ranks, Step(random, config, Choice::uniform), false), config,
              "before the loss");
  for (int i = 0; i < 3; ++i) {
    const Step rest(random, config, Choice::uniform, 5);
    const auto begin = Clock::now();
    for (const int rank : {0, 2}) {
      ranks.give(rest, rank);
      ranks.dispatch(rest, rank, both_halves);
      ranks.combine(rest, rank, both_halves);
    }
    for (const int rank : {0, 2}) machine.wait(rank);
    const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
    fmt::print("a step without rank 1: {:.3f} ms of 50\n", took.count());
    for (const int rank : {0, 2}) {
      if (i == 0) expect_status(ranks, rank, HEADRACE_MOE_TIMED_OUT, 1, "a rank that never comes");
      if (i != 0) expect_same(ranks.compare_rows(rest, rank), config, "without rank 1");
      if (i != 0) expect_same(ranks.compare_sums(rest, rank), config, "without rank 1");
    }
  }
  const Step late(random, config, Choice::uniform);
  for (int i = 0; i < 2; ++i) {  // the others had sent it their cards of the first one
    ranks.give(late, 1);
    ranks.dispatch(late, 1, both_halves);
    machine.wait(1);
  }
  if (ranks.status(1).reason != HEADRACE_MOE_LEFT_OUT)
    end_with("the late rank does not learn that it was left out");
}

void check_mask(GpuMachine& machine, Random& random) {
  const MoEConfig config = small_config(3);
  machine.clear();
  Ranks ranks(machine, config, 4, patience_ns);
  expect_same(run_step(machine, ranks, Step(random, config, Choice::uniform), false), config,
              "before the mask");
  const Step rest(random, config, Choice::uniform, 5);
  for (const int rank : {0, 2}) {
    ranks.set_active(rank, 5);
    ranks.give(rest, rank);
    ranks.dispatch(rest, rank, both_halves);
    ranks.combine(rest, rank, both_halves);
  }
  for (const int rank : {0, 2}) machine.wait(rank);
  for (const int rank : {0, 2}) {
    expect_same(ranks.compare_rows(rest, rank), config, "with a mask");
    expect_same(ranks.compare_sums(rest, rank), config, "with a mask");
  }
}

void check_abort(GpuMachine& machine, Random& random) {
  const MoEConfig config = small_config(2);
  machine.clear();
  Ranks ranks(machine, config, 4, -1);
  const Step step(random, config, Choice::uniform);
  ranks.give(step, 0);
  ranks.dispatch(step, 0, both_halves);
  std::this_thread::sleep_for(20ms);
  const auto begin = Clock::now();
  ranks.abort(0);
  machine.wait(0);
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  fmt::print("an abort: ended after {:.3f} ms\n", took.count());
  expect_status(ranks, 0, HEADRACE_MOE_ABORTED, 1, "an abort");
  ranks.dispatch(step, 0, both_halves);  // ends at once
  machine.wait(0);
}

/// The others of its group do not wait for what the member that is left out would have sent.
void check_mask_in_group(GpuMachine& machine, Random& random) {
  MoEConfig config = small_config(4);
  config.group_size = 2;
  machine.clear();
  Ranks ranks(machine, config, 4, patience_ns);
  const Step step(random, config, Choice::uniform, 13);
  expect_same(run_masked_step(machine, ranks, step, 13), config, "a mask in a group");
}

void check_repeats(GpuMachine& machine, Random& random) {
  for (const int group_size : {1, 2}) {
    MoEConfig config = small_config(4);
    config.group_size = group_size;
    machine.clear();
    Ranks ranks(machine, config, 4, patience_ns);
    expect_same(repeat_step(machine, ranks, random, Step(random, config, Choice::uniform)), config,
                "a routing that is used again");
  }
}

void check(const Gpu& gpu, const Settings& settings) {
  GpuMachine machine(gpu.device, gpu.kernels, 8, std::size_t{2} << 30, std::size_t{2} << 30);
  Random random(settings.seed);
  check_lost_rank(machine, random);
  check_mask(machine, random);
  check_mask_in_group(machine, random);
  check_abort(machine, random);
  check_repeats(machine, random);
  fmt::print("a lost rank, a mask, an abort and routings that are used again are right\n");
  check_steps(machine, settings);
}

void soak(const Gpu& gpu, const Settings& settings) {
  const auto begin = Clock::now();
  const MoEConfig config = small_config(3);
  GpuMachine machine(gpu.device, gpu.kernels, 3, std::size_t{256} << 20, std::size_t{64} << 20);
  Ranks ranks(machine, config, 4, patience_ns);
  Random random(settings.seed);
  const auto next = [&](int i) {
    Step step(random, config, static_cast<Choice>(i % choices));
    step.make_plain(config);
    return step;
  };
  const Step first = next(0);
  std::vector<Replay> replays;
  for (int rank = 0; rank < 3; ++rank)
    replays.emplace_back(machine, rank, [&, rank] {
      ranks.dispatch(first, rank, both_halves);
      ranks.combine(first, rank, both_halves);
    });
  int done = 0;
  for (; done < settings.replays && Clock::now() - begin < std::chrono::seconds(settings.seconds); ++done) {
    const Step step = next(done);
    for (int rank = 0; rank < 3; ++rank) ranks.give(step, rank);
    for (int rank = 0; rank < 3; ++rank) replays[static_cast<std::size_t>(rank)].launch(rank);
    for (int rank = 0; rank < 3; ++rank) machine.wait(rank);
    for (int rank = 0; rank < 3; ++rank)
      expect_same(ranks.compare_rows(step, rank) + ranks.compare_sums(step, rank), config,
                  fmt::format("seed {}, replay {}", settings.seed, done));
  }
  fmt::print("{} replays of 3 ranks with other tokens, experts and counts are right, {:.1f} s\n", done,
             std::chrono::duration<double>(Clock::now() - begin).count());
}

// ------------------------------------------------------------------ time

/// The bare kernels.
class BareKernels {
 public:
  explicit BareKernels(const Gpu& gpu) : driver_(gpu.device->driver()) {
    const gpu::ContextGuard guard(*gpu.device);
    for (std::uint64_t i = 0; i < headrace_bare_moe_image_count && module_ == nullptr; ++i)
      if (driver_.module_load_data(&module_, headrace_bare_moe_images[i].data) != cuda::Outcome::success)
        module_ = nullptr;
    if (module_ == nullptr) end_with("no image of the bare kernels runs on this GPU");
    // Kernels that are launched later would wait for running ones while they are loaded.
    copy = find("bare_moe_copy"), sum = find("bare_moe_sum");
    compare = find("bare_moe_compare"), fill = find("bare_moe_fill");
  }
  template <class Args>
  void launch(cuda::Function function, unsigned blocks, cuda::Stream stream, Args args) const {
    void* parameters[] = {&args};
    cuda::LaunchConfig config;
    config.grid_x = blocks;
    config.block_x = 512;
    config.stream = stream;
    if (driver_.launch_kernel_ex(&config, function, parameters, nullptr) != cuda::Outcome::success)
      end_with("a bare kernel cannot be launched");
  }
  cuda::Function copy, sum, compare, fill;

 private:
  [[nodiscard]] cuda::Function find(const char* name) const {
    cuda::Function found = nullptr;
    if (driver_.module_get_function(&found, module_, name) != cuda::Outcome::success ||
        driver_.func_load(found) != cuda::Outcome::success)
      end_with(fmt::format("there is no bare kernel {}", name));
    return found;
  }
  const cuda::DriverTable& driver_;
  cuda::Module module_ = nullptr;
};

struct Shape {
  std::string_view name;
  std::int64_t hidden;
  int top_k, experts;
};
enum class Routing { uniform, zipf, hot };
constexpr std::string_view routing_names[] = {"uniform", "zipf", "hot"};

/// Lists of one bare launch: rows that go to several, or rows of which each is a sum.
struct Lists {
  std::vector<Address> one, many;
  std::vector<std::uint32_t> first{0};
  std::vector<float> weights;
  void close() { first.push_back(static_cast<std::uint32_t>(many.size())); }
};
/// The arguments of the bare kernels, as moe_kernels.cu has them.
struct BareLists {
  Address one, first, many, weights;
  std::uint32_t units, vectors, pieces;
};
struct BareCompared {
  Address a, b;
  std::uint64_t vectors;
  Address count;
};
struct BareFilled {
  Address words;
  std::uint64_t count;
  std::uint32_t seed;
};
struct DeviceLists {
  gpu::DeviceMemory one, many, first, weights;
  std::uint32_t units = 0;
};

class Timed {
 public:
  Timed(const Gpu& gpu, const BareKernels& bare, const Shape& shape, const Settings& settings)
      : gpu_(gpu),
        bare_(bare),
        shape_(shape),
        ranks_(settings.ranks),
        most_tokens_(settings.most_tokens),
        row_bytes_(static_cast<std::uint64_t>(shape.hidden) * 2),
        machine_(gpu.device, gpu.kernels, settings.ranks, 1 << 20, 1 << 20),
        before_(family_of(gpu.before)),
        random_(settings.seed) {
    // The hot expert, and the first ones of Zipf, are on rank 0: most tokens have most of their rows there.
    rows_ = static_cast<std::uint64_t>(ranks_) * static_cast<std::uint64_t>(most_tokens_) *
            static_cast<std::uint64_t>(shape.top_k);
    for (int rank = 0; rank < ranks_; ++rank) memory_.push_back(make(rank));
    for (Memory& it : memory_)
      for (int other = 0; other < ranks_; ++other)
        it.rank.windows[other] = memory_[at(other)].window.address();
    for (const Memory& it : memory_) fill(it.tokens, static_cast<std::uint32_t>(it.rank.rank));
  }

  /// Makes the route of so many tokens, and what the bare kernels do of it. False: there is too little room.
  bool choose(std::int64_t tokens, Routing routing) {
    tokens_ = tokens;
    for (int rank = 0; rank < ranks_; ++rank) choose_experts(rank, routing);
    return place_rows();
  }
  void measure_dispatch(std::uint32_t blocks,
                        const std::function<void(std::string_view, double, double, bool)>& row) {
    blocks_ = blocks;
    const auto ours = [&](int rank) { dispatch(rank); };
    const auto direct = [&](int rank) { copy(rank, direct_copy_[at(rank)]); };
    const auto staged = [&](int rank) { copy(rank, sent_[at(rank)]), copy(rank, taken_[at(rank)]); };
    once(ours), once(direct);
    bool is_same = true;
    for (int rank = 0; rank < ranks_; ++rank)
      is_same = is_same && same(memory_[at(rank)].rows, memory_[at(rank)].bare_rows, rows_of_[at(rank)]);
    report_in_turn({ours, direct, staged, [&](int rank) { dispatch(rank, before_.get()); }}, row, is_same);
  }
  void measure_combine(std::uint32_t blocks,
                       const std::function<void(std::string_view, double, double, bool)>& row) {
    blocks_ = blocks;
    const auto ours = [&](int rank) { combine(rank); };
    const auto direct = [&](int rank) { sum(rank, direct_sum_[at(rank)]); };
    const auto staged = [&](int rank) { sum(rank, partial_[at(rank)]), sum(rank, total_[at(rank)]); };
    once([&](int rank) { dispatch(rank); });
    once(ours);
    // All partials before the first sum: the bare kernels do not wait for one another.
    once([&](int rank) { sum(rank, partial_[at(rank)]); });
    once([&](int rank) { sum(rank, total_[at(rank)]); });
    bool is_same = true;
    for (int rank = 0; rank < ranks_; ++rank)
      is_same = is_same && same(memory_[at(rank)].sums, memory_[at(rank)].bare_sums,
                                static_cast<std::uint64_t>(tokens_));
    report_in_turn({ours, direct, staged, [&](int rank) { combine(rank, before_.get()); }}, row, is_same);
  }
  [[nodiscard]] std::uint32_t most_blocks() const { return machine_.most_blocks(ranks_); }

 private:
  struct Memory {
    headrace_moe_rank_v1 rank;
    gpu::DeviceMemory window, state, routing, tokens, experts, weights, rows, bare_rows, sums, bare_sums;
    gpu::PinnedMemory words;
  };
  using Family = gpu::KernelFamily<headrace_moe_v1>;
  using RankLaunch = std::function<void(int rank)>;
  using Row = std::function<void(std::string_view, double, double, bool)>;
  static constexpr int rounds = 11;

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] gpu::DeviceMemory zeros(std::uint64_t bytes) {
    auto made = must(gpu::DeviceMemory::allocate(gpu_.device, bytes));
    machine_.must_be(driver().memset_d8_async(made.address(), 0, bytes, machine_.stream(0)),
                     "cuMemsetD8Async");
    machine_.wait(0);
    return made;
  }
  [[nodiscard]] const cuda::DriverTable& driver() const { return gpu_.device->driver(); }
  [[nodiscard]] int experts_of(int rank) const {  // even
    return shape_.experts / ranks_ + (rank < shape_.experts % ranks_ ? 1 : 0);
  }

  Memory make(int rank) {
    headrace_moe_rank_v1 it{};
    it.ranks = static_cast<std::uint32_t>(ranks_), it.rank = static_cast<std::uint32_t>(rank);
    it.group_size = 1;
    it.top_k = static_cast<std::uint32_t>(shape_.top_k);
    it.max_tokens = static_cast<std::uint32_t>(most_tokens_);
    it.row_bytes = row_bytes_, it.hidden = static_cast<std::uint64_t>(shape_.hidden);
    it.combine_dtype = HEADRACE_BFLOAT16, it.row_alignment = 1, it.output_rows = rows_;
    for (int i = 0; i < ranks_; ++i)
      it.first_expert[i + 1] = it.first_expert[i] + static_cast<std::uint32_t>(experts_of(i));
    it.sharing = it.ranks, it.timeout_ns = patience_ns;
    const headrace_moe_v1& table = machine_.table();
    const auto tokens = static_cast<std::uint64_t>(most_tokens_),
               entries = tokens * static_cast<std::uint64_t>(shape_.top_k);
    Memory made{it,
                zeros(table.window_bytes(&it)),
                zeros(table.state_bytes(&it)),
                zeros(table.routing_bytes(&it)),
                zeros(tokens * row_bytes_),
                zeros(entries * 4),
                zeros(entries * 4),
                zeros(rows_ * row_bytes_),
                zeros(rows_ * row_bytes_),
                zeros(tokens * row_bytes_),
                zeros(tokens * row_bytes_),
                must(gpu::PinnedMemory::allocate(gpu_.device, 4096))};
    made.rank.state = made.state.address(), made.rank.status = made.words.address();
    return made;
  }
  void fill(const gpu::DeviceMemory& memory, std::uint32_t seed) const {
    bare_.launch(bare_.fill, 128, machine_.stream(0), BareFilled{memory.address(), memory.bytes() / 4, seed});
    wait_all();
  }
  void wait_all() const {
    for (int rank = 0; rank < ranks_; ++rank) const_cast<GpuMachine&>(machine_).wait(rank);
    for (const Memory& it : memory_) {
      const auto& status = *reinterpret_cast<const headrace_moe_status_v1*>(it.words.bytes().data());
      if (__atomic_load_n(&status.reason, __ATOMIC_ACQUIRE) != 0)
        end_with(
            fmt::format("rank {} has status {}: peer {}, operation {}, awaited {}, number {}, expected {}, "
                        "seen {}",
                        it.rank.rank, status.reason, status.peer, status.operation, status.awaited,
                        status.number, status.expected, status.seen));
    }
  }
  void put(Address to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    machine_.must_be(driver().memcpy_async(to, reinterpret_cast<Address>(from), bytes, machine_.stream(0)),
                     "cuMemcpyAsync");
    const_cast<GpuMachine&>(machine_).wait(0);
  }

  // --- routes
  void choose_experts(int rank, Routing routing) {
    auto& experts = experts_[rank];
    auto& weights = weights_[rank];
    experts.clear(), weights.clear();
    for (std::int64_t token = 0; token < tokens_; ++token)
      for (int k = 0; k < shape_.top_k; ++k) {
        const Choice how = routing == Routing::zipf ? Choice::zipf : Choice::uniform;
        auto expert = static_cast<std::int32_t>(moe_steps::choose(random_, how, shape_.experts));
        if (routing == Routing::hot && k == 0) expert = 0;
        while (std::find(experts.end() - k, experts.end(), expert) != experts.end())
          expert = (expert + 1) % shape_.experts;
        experts.push_back(expert);
        weights.push_back(std::uniform_real_distribution<float>(0, 1)(random_));
      }
    const Memory& it = memory_[at(rank)];
    put(it.experts.address(), experts.data(), experts.size() * 4);
    put(it.weights.address(), weights.data(), weights.size() * 4);
  }
  [[nodiscard]] int rank_of(std::int32_t expert) const {
    int rank = 0;
    while (expert >= experts_of(rank)) expert -= experts_of(rank++);
    return rank;
  }

  /// Where each entry's row is: by expert, then in the order of sources and tokens.
  bool place_rows() {
    std::vector<std::uint64_t> next(static_cast<std::size_t>(shape_.experts));
    for (int rank = 0; rank < ranks_; ++rank)
      for (const std::int32_t expert : experts_[rank]) ++next[static_cast<std::size_t>(expert)];
    rows_of_.assign(at(ranks_), 0);
    for (std::size_t expert = 0; expert < next.size(); ++expert) {
      std::uint64_t& rows = rows_of_[at(rank_of(static_cast<std::int32_t>(expert)))];
      rows += std::exchange(next[expert], rows);
    }
    for (const std::uint64_t rows : rows_of_)
      if (rows > rows_) return false;
    make_lists(next);
    return true;
  }
  void make_lists(std::vector<std::uint64_t>& next) {
    std::vector<Lists> direct(at(ranks_)), sent(at(ranks_)), taken(at(ranks_)), sums(at(ranks_)),
        partials(at(ranks_)), totals(at(ranks_));
    for (int source = 0; source < ranks_; ++source) {
      std::vector<std::uint32_t> slots(at(ranks_));
      const Memory& own = memory_[at(source)];
      for (std::int64_t token = 0; token < tokens_; ++token) {
        const Address row = own.tokens.address() + static_cast<std::uint64_t>(token) * row_bytes_;
        const Address result = own.bare_sums.address() + static_cast<std::uint64_t>(token) * row_bytes_;
        direct[at(source)].one.push_back(row), sent[at(source)].one.push_back(row);
        sums[at(source)].one.push_back(result), totals[at(source)].one.push_back(result);
        std::vector<std::vector<std::pair<Address, float>>> of(at(ranks_));  // rows in our output, by target
        for (int k = 0; k < shape_.top_k; ++k) {
          const auto entry = static_cast<std::size_t>(token * shape_.top_k + k);
          const std::int32_t expert = experts_[source][entry];
          const int target = rank_of(expert);
          const std::uint64_t offset = next[static_cast<std::size_t>(expert)]++ * row_bytes_;
          direct[at(source)].many.push_back(memory_[at(target)].bare_rows.address() + offset);
          sums[at(source)].many.push_back(memory_[at(target)].rows.address() + offset);
          sums[at(source)].weights.push_back(weights_[source][entry]);
          of[at(target)].emplace_back(offset, weights_[source][entry]);
        }
        for (int target = 0; target < ranks_; ++target) {
          if (of[at(target)].empty()) continue;
          const Memory& there = memory_[at(target)];
          const auto layout = kernels::moe::common_of(own.rank)->window;
          const std::uint32_t slot = slots[at(target)]++;
          const Address record = there.window.address() +
                                 layout.slot_at(0, static_cast<std::uint32_t>(source), slot) +
                                 layout.record.row_at();
          const Address partial =
              own.window.address() + layout.partial_at(0, static_cast<std::uint32_t>(target), slot);
          sent[at(source)].many.push_back(record), taken[at(target)].one.push_back(record);
          partials[at(target)].one.push_back(partial), totals[at(source)].many.push_back(partial);
          totals[at(source)].weights.push_back(1);
          for (const auto& [offset, weight] : of[at(target)]) {
            taken[at(target)].many.push_back(there.bare_rows.address() + offset);
            partials[at(target)].many.push_back(there.rows.address() + offset);
            partials[at(target)].weights.push_back(weight);
          }
          taken[at(target)].close(), partials[at(target)].close();
        }
        direct[at(source)].close(), sent[at(source)].close();
        sums[at(source)].close(), totals[at(source)].close();
      }
    }
    direct_copy_ = on_device(direct), sent_ = on_device(sent), taken_ = on_device(taken);
    direct_sum_ = on_device(sums), partial_ = on_device(partials), total_ = on_device(totals);
  }
  [[nodiscard]] std::vector<DeviceLists> on_device(const std::vector<Lists>& lists) {
    std::vector<DeviceLists> made;
    const auto upload = [&](const auto& values) {
      auto memory = must(gpu::DeviceMemory::allocate(gpu_.device, values.size() * sizeof values[0] + 16));
      put(memory.address(), values.data(), values.size() * sizeof values[0]);
      return memory;
    };
    for (const Lists& it : lists)
      made.push_back({upload(it.one), upload(it.many), upload(it.first), upload(it.weights),
                      static_cast<std::uint32_t>(it.one.size())});
    return made;
  }

  // --- launches
  [[nodiscard]] static std::unique_ptr<const Family> family_of(
      const std::shared_ptr<const gpu::Kernels>& kernels) {
    if (kernels == nullptr) return {};
    return std::make_unique<const Family>(
        must(Family::of(kernels, HEADRACE_MOE_FAMILY, HEADRACE_MOE_FAMILY_VERSION)));
  }
  /// `family`: not null: instead of the machine's.
  void dispatch(int rank, const Family* family = nullptr) {
    Memory& it = memory_[at(rank)];
    it.rank.blocks = blocks_;
    headrace_moe_dispatch_v1 args{};
    args.struct_size = sizeof args;
    args.rank = &it.rank, args.halves = both_halves, args.experts_bytes = 4;
    args.routing = it.routing.address(), args.tokens = static_cast<std::uint64_t>(tokens_);
    args.rows = it.tokens.address(), args.row_stride = row_bytes_;
    args.experts = it.experts.address(), args.weights = it.weights.address();
    args.out_rows = it.rows.address();
    if (family == nullptr) return machine_.dispatch(rank, args);
    machine_.must_be(family->launch<&headrace_moe_v1::dispatch>(args, machine_.stream(rank)), "dispatch");
  }
  void combine(int rank, const Family* family = nullptr) {
    Memory& it = memory_[at(rank)];
    it.rank.blocks = blocks_;
    headrace_moe_combine_v1 args{};
    args.struct_size = sizeof args;
    args.rank = &it.rank, args.halves = both_halves, args.weighted = 1;
    args.routing = it.routing.address();
    args.results = it.rows.address(), args.result_stride = row_bytes_;
    args.sums = it.sums.address(), args.sum_stride = row_bytes_;
    if (family == nullptr) return machine_.combine(rank, args);
    machine_.must_be(family->launch<&headrace_moe_v1::combine>(args, machine_.stream(rank)), "combine");
  }
  [[nodiscard]] std::uint32_t vectors() const { return static_cast<std::uint32_t>(row_bytes_ / 16); }
  [[nodiscard]] std::uint32_t pieces(std::uint32_t units) const {
    return kernels::moe::pieces_of(units, row_bytes_, std::uint64_t{blocks_} * 16);
  }
  [[nodiscard]] BareLists bare_lists(const DeviceLists& lists) const {
    return {lists.one.address(),     lists.first.address(), lists.many.address(),
            lists.weights.address(), lists.units,           vectors(),
            pieces(lists.units)};
  }
  void copy(int rank, const DeviceLists& lists) const {
    bare_.launch(bare_.copy, blocks_, machine_.stream(rank), bare_lists(lists));
  }
  void sum(int rank, const DeviceLists& lists) const {
    bare_.launch(bare_.sum, blocks_, machine_.stream(rank), bare_lists(lists));
  }
  template <class Launch>
  void once(const Launch& launch) {
    for (int rank = 0; rank < ranks_; ++rank) launch(rank);
    wait_all();
  }
  [[nodiscard]] bool same(const gpu::DeviceMemory& a, const gpu::DeviceMemory& b, std::uint64_t rows) {
    const auto counter = zeros(16);
    bare_.launch(bare_.compare, 128, machine_.stream(0),
                 BareCompared{a.address(), b.address(), rows * vectors(), counter.address()});
    std::uint64_t differing = 1;
    machine_.must_be(driver().memcpy_async(reinterpret_cast<Address>(&differing), counter.address(),
                                           sizeof differing, machine_.stream(0)),
                     "cuMemcpyAsync");
    machine_.wait(0);
    if (differing != 0) fmt::print(stderr, "{} of {} vectors differ\n", differing, rows * vectors());
    return differing == 0;
  }

  /// The median of the slowest rank's time of one operation in a graph, in us.
  class Timer {
   public:
    template <class Launch>
    Timer(Timed& of, int operations, const Launch& launch) : of_(of), operations_(operations) {
      for (int rank = 0; rank < of.ranks_; ++rank) {
        replays_.emplace_back(of.machine_, rank, [&] {
          for (int i = 0; i < operations; ++i) launch(rank);
        });
        for (auto* const events : {&begins_, &ends_})
          events->push_back(must(gpu::Event::make(of.gpu_.device, gpu::Timing::on)));
      }
    }
    [[nodiscard]] double once() const {
      std::barrier together(of_.ranks_);
      std::vector<double> times(at(of_.ranks_));
      {
        std::vector<std::jthread> threads;
        for (int rank = 0; rank < of_.ranks_; ++rank)
          threads.emplace_back([&, rank] {
            const gpu::ContextGuard context(*of_.gpu_.device);
            together.arrive_and_wait();
            must(begins_[at(rank)].record(of_.machine_.stream(rank)));
            replays_[at(rank)].launch(rank);
            must(ends_[at(rank)].record(of_.machine_.stream(rank)));
            of_.machine_.wait(rank);
            times[at(rank)] =
                std::chrono::duration<double, std::micro>(must(ends_[at(rank)].since(begins_[at(rank)])))
                    .count();
          });
      }
      return *std::ranges::max_element(times) / operations_;
    }

   private:
    Timed& of_;
    const int operations_;
    std::vector<Replay> replays_;
    std::vector<gpu::Event> begins_, ends_;
  };

  /// Ours, the two bare ones, and those of another library if there is one.
  void report_in_turn(const std::vector<RankLaunch>& launches, const Row& row, bool is_same) {
    constexpr std::string_view peers[] = {"", "bare_direct", "bare_staged", "before"};
    const int operations = tokens_ >= 1024 ? 4 : 20;
    std::vector<Timer> timers;
    for (const RankLaunch& launch : std::span(launches).first(before_ == nullptr ? 3 : 4))
      timers.emplace_back(*this, operations, launch);
    std::vector<std::vector<double>> times(timers.size());
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < timers.size(); ++i) times[i].push_back(timers[i].once());
    wait_all();
    for (auto& of : times) std::ranges::sort(of);
    for (std::size_t i = 1; i < times.size(); ++i)
      row(peers[i], times[0][rounds / 2], times[i][rounds / 2], is_same);
  }

  const Gpu& gpu_;
  const BareKernels& bare_;
  const Shape shape_;
  const int ranks_;
  const std::int64_t most_tokens_;
  const std::uint64_t row_bytes_;
  GpuMachine machine_;
  const std::unique_ptr<const Family> before_;
  Random random_;
  std::uint64_t rows_ = 0;
  std::int64_t tokens_ = 0;
  std::uint32_t blocks_ = 0;
  std::vector<Memory> memory_;
  std::map<int, std::vector<std::int32_t>> experts_;
  std::map<int, std::vector<float>> weights_;
  std::vector<std::uint64_t> rows_of_;
  std::vector<DeviceLists> direct_copy_, sent_, taken_, direct_sum_, partial_, total_;
};

void time(const Gpu& gpu, const Settings& settings, const std::string& command) {
  const gpu::ContextGuard guard(*gpu.device);
  const BareKernels bare(gpu);
  const auto date = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const auto begin = Clock::now();
  for (const Shape& shape : {Shape{"", 7168, 8, 256}, Shape{"/hidden2048-top4-of-32", 2048, 4, 32}}) {
    Timed timed(gpu, bare, shape, settings);
    // The figures that goals name come first: a run that is cut short has them.
    std::vector<std::int64_t> tokens = {4096, 128, 1, 8, 32, 1024, 8192};
    if (settings.full) tokens = {4096, 128, 1, 2, 4, 8, 16, 32, 64, 256, 512, 1024, 2048, 8192};
    for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::hot})
      for (const std::int64_t count : tokens) {
        const bool is_wanted =
            count <= settings.most_tokens && Clock::now() - begin < std::chrono::seconds(settings.seconds);
        if (!is_wanted || !timed.choose(count, routing)) continue;
        for (const std::uint32_t blocks : {32u, 16u, 8u}) {
          if (blocks > timed.most_blocks()) continue;
          const auto report = [&](std::string_view operation) {
            return [&, operation](std::string_view peer, double us, double its_us, bool is_same) {
              const std::string routing_text =
                  routing == Routing::uniform
                      ? std::string()
                      : fmt::format("/{}", routing_names[static_cast<std::size_t>(routing)]);
              fmt::print(
                  R"({{"date": "{:%Y-%m-%dT%H:%M:%SZ}", "commit": "", "machine": "", "command": "{}", )"
                  R"("table": "moe-gpu1", "case": "{}/{}{}{}{}", "metric": "us", "unit": "us", )"
                  R"("value": {:.4g}, "peer": "{}", "peer_value": {:.4g}, "ratio": {:.4g}, )"
                  R"("checked": {}}})"
                  "\n",
                  fmt::gmtime(date), command, operation, count, shape.name, routing_text,
                  blocks == 32 ? std::string() : fmt::format("/blocks{}", blocks), us, peer, its_us,
                  its_us / us, is_same);
              std::fflush(stdout);
              if (!is_same) end_with("what was got differs from what the bare kernels made");
            };
          };
          timed.measure_dispatch(blocks, report("dispatch"));
          timed.measure_combine(blocks, report("combine"));
        }
      }
  }
}

Settings read(int count, char** arguments) {
  Settings settings;
  int full = 0;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    const auto number = [&](std::string_view name, auto& value) {
      if (word != name || i + 1 >= count) return false;
      value = static_cast<std::remove_reference_t<decltype(value)>>(std::stoll(arguments[++i]));
      return true;
    };
    if (word == "--before" && i + 1 < count)
      settings.before = arguments[++i];
    else if (word == "check")
      settings.checks = true;
    else if (word == "quick")
      settings.checks = settings.quick = true;
    else if (word == "soak")
      settings.soaks = true;
    else if (word == "time")
      settings.times = true;
    else if (!number("--seconds", settings.seconds) && !number("--seed", settings.seed) &&
             !number("--ranks", settings.ranks) && !number("--replays", settings.replays) &&
             !number("--most", settings.most_tokens) && !number("--full", full))
      end_with(fmt::format("{}: the arguments are at the head of bench/gpu/moe.cpp", word));
  }
  settings.full = full != 0;
  return settings;
}

void run(int count, char** arguments) {
  const Settings settings = read(count, arguments);
  const cuda::DriverTable driver = must(cuda::load_driver());
  Gpu gpu;
  gpu.device = must(gpu::Device::open(driver, 0));
  gpu.kernels = must(gpu::Kernels::open(must(gpu::KernelLibrary::load()), gpu.device));
  if (!settings.before.empty())
    gpu.before = must(gpu::Kernels::open(must(gpu::KernelLibrary::load(settings.before)), gpu.device));
  if (settings.checks) check(gpu, settings);
  if (settings.soaks) soak(gpu, settings);
  std::string command = "bench_gpu_moe";
  for (int i = 1; i < count; ++i) command += std::string(" ") + arguments[i];
  if (settings.times) time(gpu, settings, command);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count, arguments);
  } catch (const std::exception& error) {
    end_with(error.what());
  }
  return 0;
}
