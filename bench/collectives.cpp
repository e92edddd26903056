// SPDX-License-Identifier: Apache-2.0
// Collectives between processes of this host: microseconds per operation, of the slowest rank, data checked.
//
//   bench_collectives [--ranks 2] [--ops all_reduce,broadcast] [--bytes 8,1024] [--hint name=value] [--json]
//
// It starts itself once for each rank. `--json` prints a line for each row.
#include <headrace/comm.hpp>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace {

using headrace::Comm;
using headrace::ConstElements;
using headrace::ReduceOp;
using headrace::Result;
using headrace::Work;
using Clock = std::chrono::steady_clock;

struct Plan {
  int ranks = 2;
  std::vector<std::string> ops = {"barrier",    "all_reduce",     "broadcast",  "reduce",
                                  "all_gather", "reduce_scatter", "all_to_all", "gather",
                                  "scatter",    "send_recv",      "abort"};
  std::vector<std::size_t> bytes = {8, 64, 1024, 8192, 65536, 1 << 19, 4 << 20, 64 << 20};
  std::map<std::string, std::string> hints;
  bool json = false;
};

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

Plan read_plan(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--json") {
      plan.json = true;
      continue;
    }
    ++i;
    if (word == "--ranks") plan.ranks = std::max(1, std::atoi(value.c_str()));
    if (word == "--ops") plan.ops = split_list(value);
    if (word == "--hint") plan.hints[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
    if (word == "--bytes") {
      plan.bytes.clear();
      for (const std::string& bytes : split_list(value))
        plan.bytes.push_back(std::strtoull(bytes.c_str(), nullptr, 10));
    }
  }
  return plan;
}

template <class T>
T take(Result<T> result) {
  if (result) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

/// One operation on float32: runs it once, and checks what it left.
struct Case {
  std::function<Result<Work>()> run;
  std::function<bool()> right;
};

/// Fills memory so that every rank's elements are its number plus one.
class Data {
 public:
  Data(Comm& comm, std::size_t bytes)
      : comm_(comm),
        ranks_(static_cast<std::size_t>(comm.size())),
        count_(std::max<std::size_t>(bytes / sizeof(float), 1)),
        mine_(static_cast<float>(comm.rank() + 1)),
        in_(count_, mine_),
        out_(count_) {}

  /// The case of an operation. all_gather and its kind take `bytes` in all, as all_to_all does.
  Case of(const std::string& op) {
    const std::size_t part = std::max<std::size_t>(count_ / ranks_, 1);
    const auto span = [](std::vector<float>& v, std::size_t n) { return std::span<float>(v.data(), n); };
    const std::size_t all_ranks = ranks_ * (ranks_ + 1) / 2;
    const auto sum = static_cast<float>(all_ranks);
    const auto all_are = [this](std::size_t n, float value) {
      return std::all_of(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(n),
                         [value](float element) { return element == value; });
    };
    const auto rows = [this, part] {
      for (std::size_t i = 0; i < part * ranks_; ++i) {
        const std::size_t from = i / part;
        if (out_[i] != static_cast<float>(from + 1)) return false;
      }
      return true;
    };
    out_.assign(std::max(count_, part * ranks_), 0);
    in_.assign(std::max(count_, part * ranks_), mine_);
    const bool root = comm_.rank() == 0;
    if (op == "barrier") return {[this] { return comm_.barrier(); }, [] { return true; }};
    if (op == "all_reduce")
      return {[=, this] {
                return comm_.all_reduce(ConstElements(span(in_, count_)), span(out_, count_), ReduceOp::sum);
              },
              [=, this] { return all_are(count_, sum); }};
    if (op == "broadcast") {
      out_.assign(count_, root ? 7.0F : 0.0F);
      return {[=, this] { return comm_.broadcast(span(out_, count_), 0); },
              [=, this] { return all_are(count_, 7); }};
    }
    if (op == "reduce") {  // in place: with max it stays the same, run after run
      out_.assign(count_, mine_);
      return {[=, this] { return comm_.reduce(span(out_, count_), 0, ReduceOp::max); },
              [=, this] { return all_are(count_, root ? static_cast<float>(ranks_) : mine_); }};
    }
    if (op == "all_gather")
      return {[=, this] { return comm_.all_gather_single(span(out_, part * ranks_), span(in_, part)); },
              rows};
    if (op == "reduce_scatter")
      return {[=, this] {
                return comm_.reduce_scatter_single(span(out_, part), span(in_, part * ranks_), ReduceOp::sum);
              },
              [=] { return all_are(part, sum); }};
    if (op == "all_to_all")
      return {
          [=, this] { return comm_.all_to_all_single(span(out_, part * ranks_), span(in_, part * ranks_)); },
          rows};
    if (op == "gather")
      return {[=, this] { return comm_.gather_single(span(out_, part * ranks_), span(in_, part), 0); },
              [=] { return !root || rows(); }};
    if (op == "scatter")
      return {[=, this] {
                std::vector<ConstElements> inputs;
                for (std::size_t rank = 0; root && rank < ranks_; ++rank)
                  inputs.emplace_back(std::span<const float>(in_.data() + rank * part, part));
                return comm_.scatter(span(out_, part), inputs, 0);
              },
              [=] { return all_are(part, 1); }};
    if (op == "send_recv")  // around the ring of ranks
      return {[=, this]() -> Result<Work> {
                headrace::MessageOptions async;
                async.async = true;
                const int ranks = comm_.size();
                auto sent = comm_.send(span(in_, count_), (comm_.rank() + 1) % ranks, async);
                if (!sent) return sent;
                auto got = comm_.recv(span(out_, count_), (comm_.rank() + ranks - 1) % ranks);
                if (!got) return got;
                if (auto ended = sent->wait(); !ended) return std::move(ended).error();
                return got;
              },
              [=, this] { return all_are(count_, mine_ == 1 ? static_cast<float>(ranks_) : mine_ - 1); }};
    fmt::print(stderr, "there is no operation \"{}\"\n", op);
    std::exit(2);
  }

 private:
  Comm& comm_;
  const std::size_t ranks_, count_;
  const float mine_;
  std::vector<float> in_, out_;
};

double microseconds(Clock::time_point begin, int runs) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / runs;
}

/// The largest value of all ranks.
double slowest(Comm& comm, double value) {
  std::vector<double> all{value};
  take(comm.all_reduce(all, ReduceOp::max));
  return all[0];
}

/// The median of several measurements of many runs each.
double measure(Comm& comm, const Case& test) {
  constexpr int rounds = 7;
  constexpr double round_us = 60'000;
  take(test.run());
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) take(test.run());
  const double once = slowest(comm, microseconds(begin, 3));
  const int runs = static_cast<int>(std::clamp(round_us / once, 1.0, 5000.0));
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    take(comm.barrier());
    const auto start = Clock::now();
    for (int i = 0; i < runs; ++i) take(test.run());
    times.push_back(slowest(comm, microseconds(start, runs)));
  }
  std::ranges::sort(times);
  return times[rounds / 2];
}

void print(const Plan& plan, const std::string& op, std::size_t bytes, double us) {
  if (plan.json)
    fmt::print("{{\"op\": \"{}\", \"ranks\": {}, \"bytes\": {}, \"us\": {:.3f}}}\n", op, plan.ranks, bytes,
               us);
  else
    fmt::print("{:16} {:6} {:10} {:14.2f}\n", op, plan.ranks, bytes, us);
  std::fflush(stdout);
}

/// From abort() on one rank to the return of a waiting operation on another, in the same clock.
double abort_latency(Comm& comm) {
  auto group = take(comm.split(std::vector<int>([&] {
                                 std::vector<int> all(static_cast<std::size_t>(comm.size()));
                                 std::iota(all.begin(), all.end(), 0);
                                 return all;
                               }()),
                               "abort"));
  double time = 0;
  if (comm.rank() == 0) {
    ::usleep(50'000);
    time = std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
    group->abort("measured");
  } else {
    static_cast<void>(group->barrier());
    time = std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
  }
  const double last = slowest(comm, time);
  return last + slowest(comm, comm.rank() == 0 ? -time : -1e300);
}

int run_rank(const Plan& plan, int rank, const std::string& folder) {
  headrace::CommOptions options;
  options.rank = rank;
  options.size = plan.ranks;
  options.meeting = "file://" + folder;
  options.hints = plan.hints;
  Comm comm = take(Comm::open(options));
  if (rank == 0 && !plan.json) fmt::print("{:16} {:>6} {:>10} {:>14}\n", "operation", "ranks", "bytes", "us");
  for (const std::string& op : plan.ops) {
    if (op == "abort") {
      const double us = plan.ranks > 1 ? abort_latency(comm) : 0;
      if (rank == 0) print(plan, op, 0, us);
      continue;
    }
    for (const std::size_t bytes : op == "barrier" ? std::vector<std::size_t>{0} : plan.bytes) {
      if (op == "send_recv" && plan.ranks == 1) continue;
      Data data(comm, bytes);
      const Case test = data.of(op);
      const double us = measure(comm, test);
      if (!test.right()) {
        fmt::print(stderr, "{} of {} bytes left wrong elements on rank {}\n", op, bytes, rank);
        return 1;
      }
      if (rank == 0) print(plan, op, bytes, us);
    }
  }
  take(comm.barrier());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Plan plan = read_plan(argc, argv);
  const char* const rank = std::getenv("BENCH_RANK");
  if (rank != nullptr) return run_rank(plan, std::atoi(rank), std::getenv("BENCH_FOLDER"));
  std::string folder = (std::filesystem::temp_directory_path() / "bench-collectives-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  ::setenv("BENCH_FOLDER", folder.c_str(), 1);
  std::vector<pid_t> ranks;
  for (int i = 0; i < plan.ranks; ++i) {
    ::setenv("BENCH_RANK", std::to_string(i).c_str(), 1);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execv("/proc/self/exe", argv);
      ::_exit(127);
    }
    ranks.push_back(pid);
  }
  int worst = 0;
  for (const pid_t pid : ranks) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return worst;
}
