// SPDX-License-Identifier: Apache-2.0
// A call as parts that ranks send and receive. Every operation is one of two: parts go to their ranks, and
// are kept or reduced there. A longer all_reduce is both: each rank reduces a share, and sends it to all.
#include "kernels/collectives/collectives.hpp"
#include "kernels/collectives/element.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

namespace headrace::kernels::collectives {
namespace {

using Elements = headrace_comm_elements_v1;

/// For S bytes each of n ranks sends 2 S (n - 1) bytes as packets in one step, and 4 S (n - 1) / n in two.
/// With two ranks these are the same. With four, one step takes less time up to 256 KiB
/// (`bench_gpu_collectives time --gpus 4 --one-shot BYTES`).
std::uint64_t usual_one_shot_bytes(std::uint32_t ranks) {
  constexpr std::uint64_t to_all = 768 << 10;
  return ranks <= 2 ? ~std::uint64_t{0} : to_all / (ranks - 1);
}

/// Shorter parts take no longer in packets of 8 bytes, of which a thread has fewer
/// (`bench_gpu_collectives time --gpus 4`). From 6 KiB on dense ones have room where those of 8 bytes have
/// it.
constexpr std::uint64_t least_dense_bytes = 192 << 10;

std::uint64_t longest_of(const Launch& launch) {
  return std::max({launch.longest_sent, launch.longest_received, launch.result.bytes});
}

/// Makes the parts of one call. An answer of false: the call is not possible.
class Planner {
 public:
  Planner(const headrace_collective_v1& args, const Shape& shape)
      : call_(*args.call),
        memories_(args.memories, args.memory_count),
        rank_(args.rank),
        ranks_(args.box.ranks),
        one_shot_bytes_(args.one_shot_bytes != 0 ? args.one_shot_bytes : usual_one_shot_bytes(ranks_)),
        launch_(plan_.launch) {
    launch_.shape = shape;
    launch_.packets_at = shape.packets_of(0);
    launch_.rank = args.rank;
    std::ranges::copy(args.boxes, launch_.boxes);
    launch_.failed_box = args.boxes[args.rank];
    launch_.abort = args.abort;
    launch_.status = args.status;
    launch_.timeout_ns = call_.timeout_ns < 0 ? 0 : std::max<std::uint64_t>(1, call_.timeout_ns);
    launch_.reduction.factor = launch_.reduction.divisor = 1;
  }

  [[nodiscard]] std::optional<Plan> plan() {
    if (!fill()) return {};
    const std::uint64_t room = std::uint64_t{launch_.shape.packets} * packet_bytes;
    const bool may_be_packed = knows_longest_ && (memories_.empty() || plan_.longest < least_direct_bytes());
    plan_.is_packed = may_be_packed && plan_.longest <= room;
    if (call_.operation == HEADRACE_COMM_ALL_REDUCE &&
        (!plan_.is_packed || plan_.longest > one_shot_bytes_)) {
      share_all_reduce();
      plan_.is_packed = may_be_packed && plan_.longest <= room / 2;  // parts and results
    }
    plan_.is_dense = plan_.is_packed && plan_.reduces && plan_.longest >= least_dense_bytes &&
                     is_float_sum(launch_.reduction);
    plan_.is_direct = !plan_.is_packed && !plan_.splits && !memories_.empty() && ranks_ > 1;
    if (!knows_longest_) plan_.longest = 0;
    launch_.own = launch_.sends[rank_];
    if (plan_.is_direct && are_all_whole() && are_apart()) place_parts();
    launch_.is_simple = are_all_whole() && (launch_.reduction.divisor == 1 || std::has_single_bit(ranks_));
    launch_.longest_sent = longest(launch_.sends);
    launch_.longest_received = longest(launch_.receives);
    if (longest_of(launch_) / launch_.shape.chunk_bytes >= most_chunks) return {};
    return plan_;
  }

 private:
  [[nodiscard]] bool fill() {
    switch (call_.operation) {
      case HEADRACE_COMM_ALL_REDUCE:
        return reduces() && has(1, 1) && send_to_all(input()) && result(output(), input().bytes);
      case HEADRACE_COMM_REDUCE:
        return reduces() && has_root() && has(1, 1) && send_to_root(input()) &&
               (!is_root() || result(output(), input().bytes));
      case HEADRACE_COMM_REDUCE_SCATTER_SINGLE:
        return reduces() && has(1, 1) && send_row(input()) && result(output(), launch_.sends[rank_].bytes);
      case HEADRACE_COMM_REDUCE_SCATTER:
      case HEADRACE_COMM_REDUCE_SCATTER_V:
        return reduces() && has(ranks_, 1) && list(call_.inputs, launch_.sends) &&
               result(output(), launch_.sends[rank_].bytes);
      case HEADRACE_COMM_ALL_GATHER_SINGLE:
        return has(1, 1) && send_to_all(input()) && row(output(), launch_.receives) && keeps_own();
      case HEADRACE_COMM_ALL_GATHER:
      case HEADRACE_COMM_ALL_GATHER_V:
        return has(1, ranks_) && send_to_all(input()) && list(call_.outputs, launch_.receives) && keeps_own();
      case HEADRACE_COMM_ALL_TO_ALL_SINGLE:
        return has(1, 1) && send_row(input()) && row(output(), launch_.receives) && keeps_own();
      case HEADRACE_COMM_ALL_TO_ALL:
        knows_longest_ = false;  // a rank does not know what others exchange
        return has(ranks_, ranks_) && list(call_.inputs, launch_.sends) &&
               list(call_.outputs, launch_.receives) && keeps_own();
      case HEADRACE_COMM_ALL_TO_ALL_V_SINGLE:
        knows_longest_ = false;
        return has(1, 1) && call_.split_count == ranks_ &&
               splits(input(), call_.input_splits, launch_.sends) &&
               splits(output(), call_.output_splits, launch_.receives) && keeps_own();
      case HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE:
        knows_longest_ = false;
        return has(1, 1, 3) && splits_on_gpu();
      case HEADRACE_COMM_BROADCAST:
        return has_root() && has(1, 1) && (!is_root() || send_to_all(input())) && receive_from_root(output());
      case HEADRACE_COMM_SCATTER:
        return has_root() && has(is_root() ? ranks_ : 0, 1) &&
               (!is_root() || list(call_.inputs, launch_.sends)) && receive_from_root(output()) &&
               (!is_root() || keeps_own());
      case HEADRACE_COMM_GATHER:
        return has_root() && has(1, is_root() ? ranks_ : 0) && send_to_root(input()) &&
               (!is_root() || (list(call_.outputs, launch_.receives) && keeps_own()));
      case HEADRACE_COMM_GATHER_SINGLE:
        return has_root() && has(1, is_root() ? 1 : 0) && send_to_root(input()) &&
               (!is_root() || (row(output(), launch_.receives) && keeps_own()));
      case HEADRACE_COMM_BARRIER:
        launch_.is_barrier = 1;
        return true;
      default:
        return false;
    }
  }

  // --- the call

  /// `given`: inputs and what says more of them.
  [[nodiscard]] bool has(std::uint64_t inputs, std::uint64_t outputs, std::uint64_t given) {
    if (call_.input_count != given || (outputs != 0 && call_.output_count != outputs)) return false;
    const Elements& any = inputs != 0 ? call_.inputs[0] : call_.outputs[0];
    width_ = width_of(any.dtype);
    const auto fits = [&](const Elements& elements) {
      return elements.dtype == any.dtype && elements.count <= (std::uint64_t{1} << 59);
    };
    return width_ != 0 && std::all_of(call_.inputs, call_.inputs + inputs, fits) &&
           std::all_of(call_.outputs, call_.outputs + outputs, fits);
  }
  [[nodiscard]] bool has(std::uint64_t inputs, std::uint64_t outputs) { return has(inputs, outputs, inputs); }
  [[nodiscard]] bool has_root() const {
    return call_.peer >= 0 && static_cast<std::uint32_t>(call_.peer) < ranks_;
  }
  [[nodiscard]] bool is_root() const { return static_cast<std::uint32_t>(call_.peer) == rank_; }
  [[nodiscard]] bool reduces() {
    plan_.reduces = true;
    if (call_.input_count == 0) return false;
    Reduction& how = launch_.reduction;
    how.dtype = call_.inputs[0].dtype;
    how.kind = call_.reduction;
    if (how.kind == HEADRACE_COMM_PREMUL_SUM) how.factor = call_.factor;
    if (how.kind == HEADRACE_COMM_AVG) how.divisor = ranks_, how.scale = 1 / static_cast<float>(ranks_);
    return is_defined(how.dtype, how.kind, call_.factor);
  }
  [[nodiscard]] Part part(const Elements& elements) const {
    return {reinterpret_cast<std::uint64_t>(elements.data), elements.count * width_};
  }
  [[nodiscard]] Part input() const { return part(call_.inputs[0]); }
  [[nodiscard]] Part output() const { return part(call_.outputs[0]); }

  // --- its parts

  static bool is_whole(const Part& part) { return (part.address | part.bytes) % unit_bytes == 0; }
  [[nodiscard]] bool are_all_whole() const {
    return is_whole(launch_.result) && std::ranges::all_of(launch_.sends, is_whole) &&
           std::ranges::all_of(launch_.receives, is_whole);
  }
  static std::uint64_t longest(std::span<const Part> parts) {
    return std::ranges::max(parts, {}, &Part::bytes).bytes;
  }
  bool know(std::uint64_t bytes) {
    plan_.longest = std::max(plan_.longest, bytes);
    return true;
  }
  bool send_to_all(const Part& from) {
    std::fill_n(launch_.sends, ranks_, from);
    launch_.one_source = 1;
    return know(from.bytes);
  }
  bool send_to_root(const Part& from) {
    launch_.sends[call_.peer] = from;
    return know(from.bytes);
  }
  bool receive_from_root(const Part& to) {
    launch_.receives[call_.peer] = to;
    return know(to.bytes);
  }
  [[nodiscard]] bool send_row(const Part& from) { return row(from, launch_.sends); }
  /// A part for each rank, one behind the other.
  [[nodiscard]] bool row(const Part& whole, Part* parts) {
    if (whole.bytes % (ranks_ * std::uint64_t{width_}) != 0) return false;
    const std::uint64_t bytes = whole.bytes / ranks_;
    for (unsigned rank = 0; rank < ranks_; ++rank) parts[rank] = {whole.address + rank * bytes, bytes};
    return know(bytes);
  }
  bool list(const Elements* elements, Part* parts) {
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      parts[rank] = part(elements[rank]);
      know(parts[rank].bytes);
    }
    return true;
  }
  [[nodiscard]] bool splits(const Part& whole, const std::uint64_t* counts, Part* parts) const {
    std::uint64_t at = 0;
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      if (counts[rank] > (whole.bytes - at) / width_) return false;
      parts[rank] = {whole.address + at, counts[rank] * width_};
      at += parts[rank].bytes;
    }
    return true;
  }
  /// The kernel reads them, and refuses those that do not fit.
  [[nodiscard]] bool splits_on_gpu() {
    const Elements &gets = call_.inputs[1], &gives = call_.inputs[2];
    const auto are_splits = [&](const Elements& elements) {
      return elements.dtype == HEADRACE_INT64 && elements.count == ranks_ && elements.data != nullptr;
    };
    if (!are_splits(gets) || !are_splits(gives)) return false;
    plan_.splits = Splits{input(), output(), reinterpret_cast<std::uint64_t>(gives.data),
                          reinterpret_cast<std::uint64_t>(gets.data), width_};
    return std::max(input().bytes, output().bytes) / launch_.shape.chunk_bytes < most_chunks;
  }
  [[nodiscard]] bool result(const Part& to, std::uint64_t bytes) {
    launch_.result = to;
    return to.bytes == bytes;
  }
  [[nodiscard]] bool keeps_own() const { return launch_.sends[rank_].bytes == launch_.receives[rank_].bytes; }

  /// Each rank reduces a share of it, and sends the result to all.
  void share_all_reduce() {
    const Part from = launch_.sends[rank_], to = launch_.result;
    const std::uint64_t units = (from.bytes + unit_bytes - 1) / unit_bytes;
    const std::uint64_t share = (units + ranks_ - 1) / ranks_ * unit_bytes;
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      const std::uint64_t at = std::min(rank * share, from.bytes), bytes = std::min(share, from.bytes - at);
      launch_.sends[rank] = {from.address + at, bytes};
      launch_.receives[rank] = {to.address + at, bytes};
    }
    launch_.result = launch_.receives[rank_];
    plan_.longest = share;
    launch_.one_source = 0;
    launch_.shares = 1;
  }

  // --- parts that go without a copy

  /// Shorter parts are faster as packets (`headrace bench coll --registered --hint packet_bytes=BYTES`, on
  /// four GPUs).
  [[nodiscard]] std::uint64_t least_direct_bytes() const {
    constexpr std::uint64_t reduced = 512 << 10, kept = 256 << 10;
    return plan_.reduces ? reduced : kept;
  }
  static bool overlap(const Part& a, const Part& b) {
    return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
  }
  /// Whether nobody writes to a part before another rank has read it.
  [[nodiscard]] bool are_apart() const {
    const bool keeps_place = launch_.own.address == launch_.receives[rank_].address;
    for (unsigned to = 0; to < ranks_; ++to) {
      if (to == rank_) continue;
      if (plan_.reduces && overlap(launch_.sends[to], launch_.result)) return false;
      for (unsigned from = 0; from < ranks_ && !plan_.reduces; ++from)
        if (overlap(launch_.sends[to], launch_.receives[from]) && !(from == rank_ && keeps_place))
          return false;
    }
    return true;
  }
  /// Where a rank sees a part, with bit 0; 0: nowhere.
  [[nodiscard]] std::uint64_t seen_by(unsigned rank, const Part& part) const {
    if (part.bytes == 0) return 1;
    for (const headrace_collectives_memory_v1& memory : memories_)
      if (part.address >= memory.address && part.bytes <= memory.bytes &&
          part.address - memory.address <= memory.bytes - part.bytes)
        return (memory.at[rank] + (part.address - memory.address)) | 1;
    return 0;
  }
  /// Parts that are reduced are read by the rank that reduces them, all others are written by their senders.
  void place_parts() {
    const bool is_read = plan_.reduces, is_written = !plan_.reduces || launch_.shares != 0;
    bool is_seen = true;
    for (unsigned rank = 0; rank < ranks_; ++rank) {
      const bool is_peer = rank != rank_;
      launch_.send_at[rank] = is_read && is_peer ? seen_by(rank, launch_.sends[rank]) : 1;
      launch_.receive_at[rank] = is_written && is_peer ? seen_by(rank, launch_.receives[rank]) : 1;
      is_seen = is_seen && launch_.send_at[rank] != 0 && launch_.receive_at[rank] != 0;
    }
    if (is_seen) return;
    std::ranges::fill(launch_.send_at, 0);
    std::ranges::fill(launch_.receive_at, 0);
  }

  const headrace_comm_call_v1& call_;
  const std::span<const headrace_collectives_memory_v1> memories_;
  const std::uint32_t rank_, ranks_;
  const std::uint64_t one_shot_bytes_;
  std::uint32_t width_ = 0;
  bool knows_longest_ = true;  // all ranks do
  Plan plan_{};
  Launch& launch_;
};

// More chunks of a block under way save no time.
constexpr std::uint32_t most_block_slots = 4;

/// Few blocks for few packets. More threads rather than more than one place for each of them.
void divide_packets(Plan& plan, std::uint64_t bytes, std::uint32_t blocks) {
  const auto in_steps = [](std::uint64_t count, std::uint64_t step) { return (count + step - 1) / step; };
  constexpr std::uint64_t warp = 32;
  const bool is_two_shot = plan.launch.shares != 0;
  // What a thread sends at once: four dense packets, two in each of two steps, or one.
  const std::uint64_t place = plan.is_dense ? dense_bytes
                              : is_two_shot ? 2 * packet_bytes
                                            : packet_bytes,
                      places = in_steps(bytes, place),
                      least = is_two_shot || plan.is_dense ? two_step_threads : packed_threads;
  plan.launch.blocks =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(in_steps(places, least), 1, blocks));
  const std::uint64_t threads = in_steps(in_steps(places, plan.launch.blocks), warp) * warp;
  plan.threads = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(threads, least, plan.is_dense ? most_dense_threads : most_packed_threads));
}

/// As long as a slot, or shorter, so that all blocks have chunks of the longest part.
std::uint32_t chunk_bytes_for(const Launch& launch, std::uint64_t longest) {
  constexpr std::uint64_t step = 512, least = 4096;
  const std::uint64_t slot = launch.shape.chunk_bytes, whole = launch.blocks * slot;
  const std::uint64_t in_turns = launch.blocks * ((longest + whole - 1) / whole);
  const std::uint64_t even = ((longest + in_turns - 1) / in_turns + step - 1) / step * step;
  return static_cast<std::uint32_t>(std::min(slot, std::max(least, even)));
}

}  // namespace

bool is_defined(std::int32_t dtype, std::int32_t reduction, double factor) {
  const bool is_complex = dtype == HEADRACE_COMPLEX64 || dtype == HEADRACE_COMPLEX128;
  const bool is_float = dtype <= HEADRACE_BFLOAT16 || dtype >= HEADRACE_FLOAT8_E4M3FN;
  const bool is_bool = dtype == HEADRACE_BOOLEAN;
  constexpr double whole_limit = 9007199254740992.0;  // 2^53
  switch (reduction) {
    case HEADRACE_COMM_SUM:
    case HEADRACE_COMM_PRODUCT:
      return true;
    case HEADRACE_COMM_MIN:
    case HEADRACE_COMM_MAX:
      return !is_complex;
    case HEADRACE_COMM_AVG:
      return !is_bool;
    case HEADRACE_COMM_PREMUL_SUM:
      return is_float || is_complex ||
             (!is_bool && factor == std::trunc(factor) && std::abs(factor) <= whole_limit);
    case HEADRACE_COMM_BAND:
    case HEADRACE_COMM_BOR:
    case HEADRACE_COMM_BXOR:
      return !is_float && !is_complex;
    default:
      return false;
  }
}

bool is_float_sum(const Reduction& how) {
  return (how.kind == HEADRACE_COMM_SUM || how.kind == HEADRACE_COMM_AVG) &&
         (how.dtype == HEADRACE_FLOAT32 || how.dtype == HEADRACE_BFLOAT16);
}

std::optional<Plan> plan_of(const headrace_collective_v1& args) {
  const std::optional<Shape> shape = shape_of(args.box);
  if (!shape || args.call == nullptr || args.status == 0 || args.rank >= args.box.ranks) return {};
  for (unsigned rank = 0; rank < args.box.ranks; ++rank)
    if (args.boxes[rank] == 0 || args.boxes[rank] % unit_bytes != 0) return {};
  return Planner(args, *shape).plan();
}

void divide(Plan& plan, std::uint32_t blocks) {
  Launch& launch = plan.launch;
  const std::uint64_t bytes = longest_of(launch);
  if (plan.is_packed) return divide_packets(plan, bytes, blocks);
  plan.threads = chunk_threads;
  // A chunk goes from a block to the same block of another rank, so this is the same on all ranks.
  launch.blocks = blocks;
  launch.block_slots = std::bit_floor(std::min(launch.shape.slots / launch.blocks, most_block_slots));
  launch.chunk_bytes = plan.longest == 0 ? launch.shape.chunk_bytes : chunk_bytes_for(launch, plan.longest);
  launch.chunks = static_cast<std::uint32_t>((bytes + launch.chunk_bytes - 1) / launch.chunk_bytes);
}

}  // namespace headrace::kernels::collectives
