// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/coll_bench.hpp"

#include "cli/bench/bench_control.hpp"
#include "cli/bench/bench_row.hpp"
#include "cli/bench/coll_memory.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/common/progress_bar.hpp"
#include "cli/common/text.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

namespace headrace::cli {
namespace {

using BenchClock = std::chrono::steady_clock;

constexpr unsigned default_rounds = 5;
constexpr unsigned most_runs = 5000;  // of a round
constexpr unsigned graph_calls = 20;

double seconds_since(BenchClock::time_point begin) {
  return std::chrono::duration<double>(BenchClock::now() - begin).count();
}

Result<std::unique_ptr<CollGpu>> gpu_of_rank(const Comm& comm) {
  if (comm.device().kind == Device::Kind::cpu) return std::unique_ptr<CollGpu>();
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  return CollGpu::open(driver, comm.device().index);
}

Result<Comm> open_measured(const CollPlan& plan, const RankPlace& place) {
  CommOptions options;
  options.rank = place.rank;
  options.size = place.ranks;
  options.meeting = place.meeting;
  options.name = "bench";
  options.backend = plan.backend;
  options.hints = plan.hints;
  HEADRACE_CLI_TRY(device, device_of_rank(plan.device, place.rank));
  options.device = std::move(device);
  return Comm::open(options);
}

/// One operation with its memory.
class CollCase {
 public:
  CollCase(Comm& comm, const CollGpu* gpu, const CollRow& row, Place place, bool registered)
      : comm_(comm), gpu_(gpu), row_(row), place_(place), registered_(registered), call_{comm} {
    call_.op = ReduceOp(row.reduction, row.reduction == ReduceOp::premul_sum ? premul_factor : 1);
    call_.root = row.root;
    if (gpu != nullptr) call_.options.stream = gpu->stream();
  }

  Result<void> set_up() {
    HEADRACE_CLI_TRY(output, memory(row_.operation.output, WindowSide::output));
    output_ = std::move(output);
    if (place_ == Place::apart) {
      HEADRACE_CLI_TRY(input, memory(row_.operation.input, WindowSide::input));
      input_ = std::move(input);
    }
    call_.input = tensor_of(source());
    call_.output = tensor_of(output_);
    call_.window = window_ ? &*window_ : nullptr;
    call_.prepare();
    HEADRACE_CLI_CHECK(share_equally());
    if (registered_)
      for (const Elements& tensor : tensors()) HEADRACE_CLI_CHECK(comm_.tensor_register(tensor));
    return {};
  }
  Result<void> tear_down() {
    graph_.reset();  // its replays would use what is not registered any more
    if (registered_)
      for (const Elements& tensor : tensors()) HEADRACE_CLI_CHECK(comm_.tensor_deregister(tensor));
    if (window_) HEADRACE_CLI_CHECK(window_->tensor_deregister());
    return {};
  }

  Result<void> fill(const CollElements& elements) {
    elements.fill(source().host(), comm_.rank());
    return source().upload();
  }
  Result<std::uint64_t> wrong(const CollElements& elements) {
    HEADRACE_CLI_CHECK(output_.download());
    const CollRank rank{comm_.rank(), comm_.size(), row_.root};
    std::uint64_t wrong = 0;
    for (const ExpectedPart& part : row_.operation.expected(rank, row_.count))
      wrong += elements.wrong(output_.host(), part);
    return wrong;
  }
  /// Runs it so many times, and waits for the end.
  Result<void> run(unsigned times) {
    for (unsigned i = 0; i < times; ++i) HEADRACE_CLI_CHECK(row_.operation.run(call_));
    return gpu_ != nullptr ? gpu_->wait() : Result<void>();
  }
  Result<void> capture() {
    HEADRACE_CLI_TRY(graph, gpu_->capture([this]() -> Result<void> {
      for (unsigned i = 0; i < graph_calls; ++i) HEADRACE_CLI_CHECK(row_.operation.run(call_));
      return {};
    }));
    graph_ = std::move(graph);
    return {};
  }
  Result<void> replay(unsigned times) {
    for (unsigned i = 0; i < times; ++i) HEADRACE_CLI_CHECK(graph_->launch());
    return gpu_->wait();
  }
  [[nodiscard]] bool captured() const { return graph_ != nullptr; }

 private:
  Result<CollMemory> memory(Extent extent, WindowSide side) {
    // One part for each rank is at the root alone, in an operation with a root.
    if (extent == Extent::none || (extent == Extent::row && row_.operation.rooted && !call_.is_root()))
      return CollMemory();
    const std::size_t count =
        extent == Extent::row ? row_.count * static_cast<std::size_t>(comm_.size()) : row_.count;
    if (row_.operation.window != side) return CollMemory::make(count * element_bytes(row_.dtype), gpu_);
    HEADRACE_CLI_TRY(window, comm_.new_window());
    window_ = std::move(window);
    HEADRACE_CLI_TRY(elements, window_->allocate(count, row_.dtype));
    return CollMemory::over({static_cast<std::byte*>(elements.data), elements.bytes()});
  }
  Result<void> share_equally() {
    const std::vector<std::int64_t> shares(call_.splits.begin(), call_.splits.end());
    const auto bytes = std::as_bytes(std::span(shares));
    HEADRACE_CLI_TRY(splits, CollMemory::make(bytes.size(), gpu_));
    splits_ = std::move(splits);
    std::ranges::copy(bytes, splits_.host().begin());
    call_.split_elements = {splits_.data(), shares.size(), DType::int64};
    return splits_.upload();
  }
  [[nodiscard]] std::vector<Elements> tensors() {
    if (place_ == Place::same) return {tensor_of(output_)};
    return {tensor_of(input_), tensor_of(output_)};
  }
  [[nodiscard]] Elements tensor_of(const CollMemory& memory) const {
    return {memory.data(), memory.host().size() / element_bytes(row_.dtype), row_.dtype};
  }
  CollMemory& source() { return place_ == Place::apart ? input_ : output_; }

  Comm& comm_;
  const CollGpu* const gpu_;
  const CollRow& row_;
  const Place place_;
  const bool registered_;
  CollCall call_;
  std::optional<Window> window_;
  CollMemory input_, output_, splits_;
  std::unique_ptr<CollGraph> graph_;
};

class RankBench {
 public:
  RankBench(const CollPlan& plan, CollReport& report, std::unique_ptr<CollGpu> gpu, Comm comm,
            BenchControl control, std::uint64_t seed)
      : plan_(plan),
        report_(report),
        gpu_(std::move(gpu)),
        comm_(std::move(comm)),
        control_(std::move(control)),
        seed_(seed) {}

  Result<void> run() {
    if (leads()) report_.begin(comm_);
    for (const CollOperation* const operation : plan_.operations) HEADRACE_CLI_CHECK(all_of(*operation));
    HEADRACE_CLI_CHECK(comm_.barrier(stream_options()));
    HEADRACE_CLI_CHECK(control_.meet());
    if (leads() && wrong_ > 0)
      return fail(Code::corrupt, "{} elements were wrong: see the rows above, column #wrong", wrong_);
    if (!ran_) return fail(Code::not_supported, "nothing could be run: {}", refusal_);
    return {};
  }

 private:
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }
  [[nodiscard]] OpOptions stream_options() const {
    OpOptions options;
    if (gpu_) options.stream = gpu_->stream();
    return options;
  }

  Result<void> all_of(const CollOperation& operation) {
    const bool moves = operation.elements(1, comm_.size()) > 0;
    for (const DType dtype : plan_.types) {
      for (const ReduceOp::Kind reduction : plan_.reductions) {
        if (!operation.takes(dtype, reduction)) {
          refusal_ = fmt::format("{} takes no {} with {}", operation.name, dtype_name(dtype),
                                 reduce_op_name(reduction));
          continue;
        }
        HEADRACE_CLI_CHECK(all_sizes(operation, dtype, reduction));
        if (!operation.reduces) break;
      }
      if (!moves) break;
    }
    return {};
  }

  Result<void> all_sizes(const CollOperation& operation, DType dtype, ReduceOp::Kind reduction) {
    const std::size_t parts = operation.elements(1, comm_.size());
    std::optional<std::uint64_t> last;
    for (const std::uint64_t bytes : plan_.bytes) {
      const std::uint64_t count =
          parts == 0 ? 0 : std::max<std::uint64_t>(bytes / element_bytes(dtype) / parts, 1);
      if (last == count) continue;
      last = count;
      CollRow row{operation, dtype, reduction, plan_.root, comm_.size(), count * parts * element_bytes(dtype),
                  count};
      HEADRACE_CLI_TRY(ran, measure(row));
      if (!ran) return {};
    }
    return {};
  }

  /// Returns false if the operation cannot be run here.
  Result<bool> measure(CollRow& row) {
    if (row.operation.between_ranks && comm_.size() == 1)
      return refuse(row, "it needs another rank: --ranks 2");
    if (row.operation.run == nullptr) return measure_abort(row);
    for (const auto& [place, figure] :
         {std::pair{Place::apart, &row.apart}, std::pair{Place::same, &row.same}}) {
      if (row.operation.place != place && row.operation.place != Place::both) continue;
      auto measured = measure_at(row, place);
      if (!measured && measured.code() == Code::not_supported) return refuse(row, measured.error().message);
      if (!measured) return std::move(measured).error();
      *figure = *measured;
      wrong_ += figure->value().wrong.value_or(0);
    }
    return tell(row);
  }

  bool tell(const CollRow& row) {
    ran_ = true;
    if (leads()) report_.row(row);
    return true;
  }
  bool refuse(const CollRow& row, const std::string& why) {
    refusal_ = fmt::format("{}: {}", row.operation.name, why);
    if (leads()) report_.refused(row, why);
    return false;
  }

  /// From abort() on rank 0 to the return of barriers on all others.
  Result<bool> measure_abort(CollRow& row) {
    if (gpu_ || comm_.backend() == "fake") return refuse(row, "no call waits on this backend");
    std::vector<double> seconds;
    for (unsigned i = 0; i < default_rounds; ++i) {
      HEADRACE_CLI_TRY(taken, abort_round(i));
      seconds.push_back(taken);
    }
    row.apart = CollFigure{Summary(std::move(seconds)).median(), {}};
    return tell(row);
  }

  Result<double> abort_round(unsigned number) {
    std::vector<int> ranks(static_cast<std::size_t>(comm_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    HEADRACE_CLI_TRY(part, comm_.split(ranks, fmt::format("abort {}", number)));
    const auto now = [] {
      return std::chrono::duration<double>(BenchClock::now().time_since_epoch()).count();
    };
    double begin = -std::numeric_limits<double>::infinity(), end = begin;
    if (leads()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until all others wait
      begin = now();
      part->abort("measured");
    } else {
      static_cast<void>(part->barrier());
      end = now();
    }
    HEADRACE_CLI_TRY(last, control_.largest(end));
    HEADRACE_CLI_TRY(first, control_.largest(begin));
    return last - first;
  }

  Result<CollFigure> measure_at(const CollRow& row, Place place) {
    CollCase test(comm_, gpu_.get(), row, place, plan_.registered);
    HEADRACE_CLI_CHECK(test.set_up());
    CollFigure figure;
    HEADRACE_CLI_TRY(before, checked_run(test, row));
    if (plan_.graph) HEADRACE_CLI_CHECK(test.capture());
    HEADRACE_CLI_TRY(seconds, timed(test, row));
    HEADRACE_CLI_TRY(after, checked_run(test, row));
    HEADRACE_CLI_CHECK(test.tear_down());
    figure.seconds = seconds;
    if (plan_.check) figure.wrong = before + after;
    return figure;
  }

  /// One run on fresh data. Returns how many elements of all ranks are wrong.
  Result<std::uint64_t> checked_run(CollCase& test, const CollRow& row) {
    const auto rounded_to = row.operation.name == "reduce_scatter_quantized" ? std::optional(DType::bfloat16)
                                                                             : std::optional<DType>();
    const CollElements elements(row.dtype, row.reduction, comm_.size(), seed_++, rounded_to);
    HEADRACE_CLI_CHECK(test.fill(elements));
    HEADRACE_CLI_CHECK(control_.meet());  // before it others may not write here, after it all have written
    HEADRACE_CLI_CHECK(test.run(1));
    HEADRACE_CLI_CHECK(control_.meet());
    if (!plan_.check) return std::uint64_t{0};
    HEADRACE_CLI_TRY(wrong, test.wrong(elements));
    return control_.sum(wrong);
  }

  Result<double> timed(CollCase& test, const CollRow& row) {
    unsigned runs = plan_.iterations.value_or(0);
    const unsigned rounds = runs > 0 ? 1 : default_rounds;
    if (runs == 0) {
      HEADRACE_CLI_TRY(once, round(test, 3));
      runs = static_cast<unsigned>(
          std::clamp(plan_.seconds / rounds / std::max(once, 1e-9), 1.0, double{most_runs}));
    }
    std::optional<ProgressBar> bar;
    if (leads() && row.bytes > 0)
      bar.emplace(fmt::format("{} {}", row.operation.name, size_text(row.bytes)), row.bytes * runs * rounds);
    std::vector<double> seconds;
    for (unsigned i = 0; i < rounds; ++i) {
      HEADRACE_CLI_TRY(taken, round(test, runs));
      seconds.push_back(taken);
      if (bar) bar->show(row.bytes * runs * (i + 1));
    }
    return Summary(std::move(seconds)).median();
  }

  /// Seconds of one run on the slowest rank.
  Result<double> round(CollCase& test, unsigned runs) {
    const unsigned replays = (runs + graph_calls - 1) / graph_calls;
    HEADRACE_CLI_CHECK(control_.meet());
    const auto begin = BenchClock::now();
    if (test.captured()) {
      HEADRACE_CLI_CHECK(test.replay(replays));
      runs = replays * graph_calls;
    } else {
      HEADRACE_CLI_CHECK(test.run(runs));
    }
    return control_.largest(seconds_since(begin) / runs);
  }

  const CollPlan& plan_;
  CollReport& report_;
  std::unique_ptr<CollGpu> gpu_;  // its stream outlives the communicator
  Comm comm_;
  BenchControl control_;
  std::uint64_t seed_;
  std::uint64_t wrong_ = 0;
  bool ran_ = false;
  std::string refusal_;
};

}  // namespace

Result<void> run_coll_rank(const CollPlan& plan, const RankPlace& place, CollReport& report) {
  HEADRACE_CLI_TRY(control, BenchControl::open(place));
  HEADRACE_CLI_TRY(comm, open_measured(plan, place));
  HEADRACE_CLI_TRY(gpu, gpu_of_rank(comm));
  HEADRACE_CLI_TRY(seed, control.first(fresh_seed()));
  return RankBench(plan, report, std::move(gpu), std::move(comm), std::move(control), seed).run();
}

}  // namespace headrace::cli
