// SPDX-License-Identifier: Apache-2.0
// A rank is killed, stands still, or is killed and started again, in every operation: what each other rank
// gets, and when. Ranks are processes; rank 1 is the one with the fault. The rows are the table of
// docs/collectives.md.
#include "rank_processes.hpp"

#include <headrace/comm_window.hpp>

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr int victim = 1;
constexpr auto limit_of_rank_0 = 1000ms;
/// From the fault, or from the time limit, until a rank knows of it; a machine under load takes longer than
/// one without.
constexpr auto bound = 10s;

// ---------------------------------------------------------------- the operations

/// What a rank has for the operations: more elements for each rank than a lane holds, so that one that stands
/// still holds up the others.
struct Scene {
  static constexpr std::size_t count = 40'000;

  explicit Scene(Comm& of) : comm(of), in(count * 3, 1), out(count * 3) {}

  [[nodiscard]] bool is_victim() const { return comm.rank() == victim; }
  [[nodiscard]] ConstElements input() const { return std::span(in).first(count); }
  [[nodiscard]] Elements output() { return std::span(out).first(count); }
  [[nodiscard]] std::vector<ConstElements> inputs() const {
    std::vector<ConstElements> parts;
    for (std::size_t rank = 0; rank < 3; ++rank)
      parts.emplace_back(std::span(in).subspan(rank * count, count));
    return parts;
  }
  [[nodiscard]] std::vector<Elements> outputs() {
    std::vector<Elements> parts;
    for (std::size_t rank = 0; rank < 3; ++rank)
      parts.emplace_back(std::span(out).subspan(rank * count, count));
    return parts;
  }
  [[nodiscard]] std::vector<ConstElements> inputs_of_root(int root) const {
    return comm.rank() == root ? inputs() : std::vector<ConstElements>();
  }
  [[nodiscard]] std::vector<Elements> outputs_of_root(int root) {
    return comm.rank() == root ? outputs() : std::vector<Elements>();
  }

  Comm& comm;
  std::vector<float> in, out;
  std::optional<Window> window = {};
};

template <class T>
Result<void> result_of(const Result<T>& result) {
  return result.ok() ? Result<void>() : result.error();
}

Result<void> all_gather_p(Scene& s) {
  auto handle = s.comm.all_gather_p_init(s.out);
  if (!handle.ok()) return handle.error();
  return result_of(s.comm.all_gather_p_exec(*handle, s.input()));
}

Result<void> coalesced(Scene& s) {
  Result<void> started = s.comm.start_coalescing();
  if (!started.ok()) return started;
  must(s.comm.all_reduce(s.out, ReduceOp::sum));
  must(s.comm.barrier());
  return result_of(s.comm.end_coalescing());
}

/// Rank 0 sends to the victim, and receives from it.
Result<void> batch(Scene& s) {
  const int other = s.is_victim() ? 0 : victim;
  Batch batch = s.comm.batch();
  must(batch.send(s.input(), other));
  must(batch.recv(s.output(), other));
  return result_of(batch.issue());
}

void make_window(Scene& s) { s.window = must(s.comm.new_window()); }
void make_allocated(Scene& s) {
  make_window(s);
  must(s.window->allocate(Scene::count, DType::int64));
}

/// What rank 0 gets; the others get the end of the communicator, or nothing.
enum class Sees {
  gone,        ///< peer_lost: the communicator has ended
  gone_alone,  ///< peer_lost: the communicator goes on
  late,        ///< timed_out: the communicator has ended
  late_alone,  ///< timed_out: the communicator goes on
  done,        ///< the operation needs nothing of the rank
};

constexpr const char* not_come = "rank 1 has not come within 1000 ms";

struct FaultRow {
  const char* name;    // of the test
  const char* in_doc;  // in the table
  const char* text;    // names the operation in errors
  Result<void> (*operate)(Scene&);
  Sees killed = Sees::gone, stopped = Sees::late;
  const char* late_text = not_come;
  bool all_take_part = true;  // rank 2, too
  void (*prepare)(Scene&) = nullptr;
  bool may_be_repeated = true;
  std::chrono::seconds longer = 0s;  // beyond the bound, if rank 1 stands still
};

using S = Scene&;
const std::array rows{
    FaultRow{"all_reduce", "`all_reduce`", "all_reduce number",
             [](S s) { return result_of(s.comm.all_reduce(s.out, ReduceOp::sum)); }},
    FaultRow{"broadcast_from_another", "`broadcast`", "broadcast number",
             [](S s) { return result_of(s.comm.broadcast(s.output(), 0)); }},
    FaultRow{"broadcast_from_it", "`broadcast`", "broadcast number",
             [](S s) { return result_of(s.comm.broadcast(s.output(), victim)); }},
    FaultRow{"reduce_to_another", "`reduce`", "reduce number",
             [](S s) { return result_of(s.comm.reduce(s.output(), 0, ReduceOp::sum)); }},
    FaultRow{"reduce_to_it", "`reduce`", "reduce number",
             [](S s) { return result_of(s.comm.reduce(s.output(), victim, ReduceOp::sum)); }},
    FaultRow{"all_gather", "`all_gather`", "all_gather number",
             [](S s) { return result_of(s.comm.all_gather(s.outputs(), s.input())); }},
    FaultRow{"all_gather_v", "`all_gather_v`", "all_gather_v number",
             [](S s) { return result_of(s.comm.all_gather_v(s.outputs(), s.input())); }},
    FaultRow{"all_gather_single", "`all_gather_single`", "all_gather_single number",
             [](S s) { return result_of(s.comm.all_gather_single(s.out, s.input())); }},
    FaultRow{"all_gather_p", "`all_gather_p_exec`", "all_gather_single number", all_gather_p},
    FaultRow{"reduce_scatter", "`reduce_scatter`", "reduce_scatter number",
             [](S s) { return result_of(s.comm.reduce_scatter(s.output(), s.inputs(), ReduceOp::sum)); }},
    FaultRow{"reduce_scatter_v", "`reduce_scatter_v`", "reduce_scatter_v number",
             [](S s) { return result_of(s.comm.reduce_scatter_v(s.output(), s.inputs(), ReduceOp::sum)); }},
    FaultRow{"reduce_scatter_single", "`reduce_scatter_single`", "reduce_scatter_single number",
             [](S s) { return result_of(s.comm.reduce_scatter_single(s.output(), s.in, ReduceOp::sum)); }},
    FaultRow{
        "reduce_scatter_quantized", "`reduce_scatter_quantized`", "reduce_scatter_quantized number",
        [](S s) { return result_of(s.comm.reduce_scatter_quantized(s.output(), s.in, ReduceOp::sum, 1)); }},
    FaultRow{"all_to_all", "`all_to_all`", "all_to_all number",
             [](S s) { return result_of(s.comm.all_to_all(s.outputs(), s.inputs())); }},
    FaultRow{"all_to_all_single", "`all_to_all_single`", "all_to_all_single number",
             [](S s) { return result_of(s.comm.all_to_all_single(s.out, s.in)); }},
    FaultRow{"all_to_all_v_single", "`all_to_all_v_single`", "all_to_all_v_single number",
             [](S s) {
               const std::vector<std::size_t> splits(3, Scene::count);
               return result_of(s.comm.all_to_all_v_single(s.out, s.in, splits, splits));
             }},
    FaultRow{"device_all_to_all_v_single", "`device_all_to_all_v_single`",
             "device_all_to_all_v_single number",
             [](S s) {
               const std::vector<std::int64_t> splits(3, Scene::count);
               return result_of(s.comm.device_all_to_all_v_single(s.out, s.in, splits, splits));
             }},
    FaultRow{"gather_to_another", "`gather`", "gather number",
             [](S s) { return result_of(s.comm.gather(s.outputs_of_root(0), s.input(), 0)); }},
    FaultRow{"gather_to_it", "`gather`", "gather number",
             [](S s) { return result_of(s.comm.gather(s.outputs_of_root(victim), s.input(), victim)); }},
    FaultRow{"gather_single_to_another", "`gather_single`", "gather_single number",
             [](S s) { return result_of(s.comm.gather_single(s.out, s.input(), 0)); }},
    FaultRow{"gather_single_to_it", "`gather_single`", "gather_single number",
             [](S s) { return result_of(s.comm.gather_single(s.out, s.input(), victim)); }},
    FaultRow{"scatter_from_another", "`scatter`", "scatter number",
             [](S s) { return result_of(s.comm.scatter(s.output(), s.inputs_of_root(0), 0)); }},
    FaultRow{"scatter_from_it", "`scatter`", "scatter number",
             [](S s) { return result_of(s.comm.scatter(s.output(), s.inputs_of_root(victim), victim)); }},
    FaultRow{"barrier", "`barrier`", "barrier number", [](S s) { return result_of(s.comm.barrier()); }},
    FaultRow{"monitored_barrier", "`monitored_barrier`", "monitored_barrier number",
             [](S s) { return s.comm.monitored_barrier(); }},
    FaultRow{.name = "split",
             .in_doc = "`split`",
             .text = "split number",
             .operate =
                 [](S s) {
                   const std::array all{0, 1, 2};
                   return result_of(s.comm.split(all, "again"));
                 },
             .may_be_repeated = false},
    FaultRow{"coalesced", "`end_coalescing`", "of coalesced number", coalesced},
    FaultRow{.name = "send",
             .in_doc = "`send`",
             .text = "send number",
             .operate =
                 [](S s) {
                   return result_of(s.is_victim() ? s.comm.recv(s.output(), 0)
                                                  : s.comm.send(s.input(), victim));
                 },
             .all_take_part = false},
    FaultRow{.name = "batch",
             .in_doc = "`Batch::issue`",
             .text = "of batch number",
             .operate = batch,
             .all_take_part = false},
    FaultRow{.name = "recv",
             .in_doc = "`recv`",
             .text = "recv number",
             .operate = [](S s) { return result_of(s.comm.recv(s.output(), victim)); },
             .stopped = Sees::late_alone,
             .all_take_part = false,
             .may_be_repeated = false},
    FaultRow{.name = "recv_from_any",
             .in_doc = "`recv` from `any_source`",
             .text = "recv number",
             .operate = [](S s) { return result_of(s.comm.recv(s.output(), any_source)); },
             .killed = Sees::late_alone,
             .stopped = Sees::late_alone,
             .late_text = "another rank has not come within 1000 ms",
             .all_take_part = false,
             .may_be_repeated = false},
    FaultRow{.name = "tensor_register",
             .in_doc = "`Window::allocate`, `tensor_register`",
             .text = "tensor_register number",
             .operate = [](S s) { return result_of(s.window->allocate(1, DType::int64)); },
             .prepare = make_window,
             .may_be_repeated = false},
    FaultRow{.name = "tensor_deregister",
             .in_doc = "`tensor_deregister`",
             .text = "tensor_deregister number",
             .operate = [](S s) { return s.window->tensor_deregister(); },
             .prepare = make_allocated,
             .may_be_repeated = false,
             .longer = 10s},  // until the rank lets the memory go
    FaultRow{.name = "put",
             .in_doc = "`put`",
             .text = "put number",
             .operate =
                 [](S s) {
                   const std::vector<std::int64_t> numbers(Scene::count);
                   return result_of(s.window->put(numbers, victim, 0));
                 },
             .killed = Sees::gone_alone,
             .stopped = Sees::done,
             .all_take_part = false,
             .prepare = make_allocated},
    FaultRow{.name = "get",
             .in_doc = "`get`",
             .text = "get number",
             .operate =
                 [](S s) {
                   std::vector<std::int64_t> numbers(Scene::count);
                   return result_of(s.window->get(numbers, victim, 0));
                 },
             .killed = Sees::gone_alone,
             .stopped = Sees::done,
             .all_take_part = false,
             .prepare = make_allocated},
    FaultRow{.name = "signal",
             .in_doc = "`signal`",
             .text = "signal number",
             .operate = [](S s) { return result_of(s.window->signal(victim)); },
             .killed = Sees::gone_alone,
             .stopped = Sees::done,
             .all_take_part = false,
             .prepare = make_allocated},
    FaultRow{.name = "atomic_add",
             .in_doc = "`atomic_add`",
             .text = "atomic_add number",
             .operate = [](S s) { return result_of(s.window->atomic_add(victim, 0, 1)); },
             .killed = Sees::gone_alone,
             .stopped = Sees::done,
             .all_take_part = false,
             .prepare = make_allocated},
    FaultRow{.name = "wait_signal",
             .in_doc = "`wait_signal`",
             .text = "wait_signal number",
             .operate = [](S s) { return result_of(s.window->wait_signal(victim)); },
             .killed = Sees::gone_alone,
             .stopped = Sees::late_alone,
             .late_text = "the signal of rank 1 is 0, and > 0 was awaited for 1000 ms",
             .all_take_part = false,
             .prepare = make_allocated,
             .may_be_repeated = false},
};

// ---------------------------------------------------------------- the ranks

enum class Fault { killed, stopped, restarted };
constexpr std::array fault_names{"killed", "stopped", "restarted"};
/// Whether the fault comes before the rank calls the operation, or while it is in one.
enum class Moment { before, inside };

/// One run, as text in the command line of its ranks: row/fault/moment/attempt.
struct FaultRun {
  std::size_t row = 0;
  Fault fault = Fault::killed;
  Moment moment = Moment::before;
  int attempt = 0;  // 1: of the rank that was started again

  [[nodiscard]] std::string program() const {
    std::ostringstream text;
    text << row << '/' << static_cast<int>(fault) << '/' << static_cast<int>(moment) << '/' << attempt;
    return text.str();
  }
  static FaultRun of(const std::string& program) {
    std::istringstream text(program);
    FaultRun run;
    int fault = 0, moment = 0;
    char slash = 0;
    text >> run.row >> slash >> fault >> slash >> moment >> slash >> run.attempt;
    run.fault = static_cast<Fault>(fault);
    run.moment = static_cast<Moment>(moment);
    return run;
  }
  [[nodiscard]] const FaultRow& of_row() const { return rows[row]; }
  [[nodiscard]] Sees sees() const { return fault == Fault::stopped ? of_row().stopped : of_row().killed; }
  [[nodiscard]] bool is_late() const { return sees() == Sees::late || sees() == Sees::late_alone; }
  [[nodiscard]] bool ends_all() const { return sees() == Sees::gone || sees() == Sees::late; }
  /// A message that has not begun ends alone, and a lane may be full where one begins.
  [[nodiscard]] bool may_end_alone() const {
    return fault == Fault::stopped && moment == Moment::inside && of_row().name == std::string("send");
  }
};

long long now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(SteadyClock::now().time_since_epoch()).count();
}

/// One rank in its process. Its folder has FAULT (when), and RANK and RANK.again (what it got).
class FaultyRank {
 public:
  explicit FaultyRank(char** words)
      : run_(FaultRun::of(words[0])),
        rank_(std::stoi(words[1])),
        size_(std::stoi(words[2])),
        folder_(words[3]) {}

  void run() {
    {
      Comm comm = must(Comm::open(options()));
      if (run_.attempt != 0) return write(std::to_string(rank_), work_through(comm));
      live_through(comm);
    }
    if (run_.fault != Fault::restarted) return;
    Comm comm = must(Comm::open(options()));
    write(std::to_string(rank_) + ".again", work_through(comm));
  }

 private:
  [[nodiscard]] CommOptions options() const {
    CommOptions options;
    options.rank = rank_;
    options.size = size_;
    options.meeting = "file://" + folder_ + "/store";
    options.timeout = 60s;
    options.hints = {{"backends", "shm"}, {"lane_bytes", "64KiB"}, {"message_lane_bytes", "64KiB"}};
    return options;
  }

  void live_through(Comm& comm) {
    Scene scene(comm);
    if (run_.of_row().prepare != nullptr) run_.of_row().prepare(scene);
    ok(comm.barrier());
    if (rank_ == victim) return fail(scene);
    if (rank_ == 0 && run_.is_late()) comm.set_timeout(limit_of_rank_0);
    const bool takes_part = rank_ == 0 || run_.of_row().all_take_part;
    write(std::to_string(rank_), takes_part ? operate(scene) : ask_for_the_end(comm));
    wait_for(std::to_string(2 - rank_));  // a rank that leaves earlier would be told as gone
  }

  void fail(Scene& scene) {
    std::optional<std::jthread> inside;
    if (run_.moment == Moment::inside) {
      inside.emplace([&] {
        while (run_.of_row().operate(scene).ok()) {
        }
      });
      std::this_thread::sleep_for(std::chrono::microseconds(::getpid() % 5000));
    }
    write("FAULT", std::to_string(now_ms()));
    ::kill(::getpid(), run_.fault == Fault::stopped ? SIGSTOP : SIGKILL);
  }

  /// Until it fails; some times if it is to need nothing of the victim.
  std::string operate(Scene& scene) {
    if (run_.sees() == Sees::done) wait_for("FAULT");
    for (int left = run_.sees() == Sees::done ? 3 : -1; left != 0; --left) {
      if (const Result<void> result = run_.of_row().operate(scene); !result.ok()) return text_of(result);
    }
    return "done";
  }

  /// Whether the end of the communicator reaches a rank that is in no operation.
  std::string ask_for_the_end(Comm& comm) {
    wait_for("0");
    if (run_.ends_all()) until([&] { return comm.is_aborted(); }, run_.may_end_alone() ? 1s : 3 * bound);
    std::vector<float> data(1);
    MessageOptions soon;
    soon.timeout = 1ms;
    soon.tag = 7;
    const auto asked = comm.recv(data, any_source, soon);
    return asked.code() == Code::timed_out ? "goes on" : text_of(asked);
  }

  /// A file that is there has all of its text.
  void write(const std::string& name, const std::string& text) {
    const std::string whole = folder_ + "/" + name;
    std::ofstream(whole + ".part") << now_ms() << ' ' << text;
    std::filesystem::rename(whole + ".part", whole);
  }
  void wait_for(const std::string& name) {
    until([&] { return std::filesystem::exists(folder_ + "/" + name); });
  }
  /// For so long that the test has failed otherwise.
  template <class Holds>
  static void until(const Holds& holds, std::chrono::seconds longest = 3 * bound) {
    const auto begin = SteadyClock::now();
    while (!holds() && SteadyClock::now() - begin < longest) std::this_thread::sleep_for(1ms);
  }

  const FaultRun run_;
  const int rank_, size_;
  const std::string folder_;
};

// ---------------------------------------------------------------- the test

struct Told {
  long long ms = 0;
  std::string text;

  explicit Told(const std::string& line) {
    const std::size_t space = line.find(' ');
    ms = std::strtoll(line.c_str(), nullptr, 10);
    text = space == std::string::npos ? "nothing" : line.substr(space + 1);
  }
};

class Survivors : public testing::TestWithParam<std::size_t> {
 protected:
  static void live_through(Fault fault, Moment moment) {
    const FaultRun run{GetParam(), fault, moment, 0};
    SCOPED_TRACE(std::string(run.of_row().name) + ", rank 1 is " +
                 fault_names[static_cast<std::size_t>(fault)] +
                 (moment == Moment::inside ? " in the operation" : " before the operation"));
    RankProcesses ranks(run.program(), 3);
    if (fault == Fault::restarted) {
      EXPECT_EQ(ranks.signal_of(victim), SIGKILL);
      FaultRun again = run;
      again.attempt = 1;
      ranks.start(victim, again.program());
    }
    const Told first(ranks.line_of(0)), other(ranks.line_of(2)), began(ranks.text_of_file("FAULT"));
    expect_of_rank_0(run, first.text);
    expect_of_rank_2(run, other.text);
    expect_in_time(run, first.ms - began.ms);
    expect_in_time(run, other.ms - began.ms);
    if (fault != Fault::restarted) return;
    EXPECT_EQ(Told(ranks.line_of(victim)).text, "all right");
    for (const char* name : {"0.again", "2.again"})
      EXPECT_EQ(Told(ranks.text_of_file(name)).text, "all right") << name;
  }

 private:
  static void expect_of_rank_0(const FaultRun& run, const std::string& line) {
    if (run.sees() == Sees::done) {
      EXPECT_EQ(line, "done");
      return;
    }
    EXPECT_THAT(line, StartsWith(run.is_late() ? "timed_out: rank 0, " : "peer_lost: rank 0, "));
    EXPECT_THAT(line, HasSubstr(run.of_row().text));
    expect_names_rank_1(run, line);
  }
  static void expect_of_rank_2(const FaultRun& run, const std::string& line) {
    if (run.may_end_alone() && line == "goes on") return;
    if (!run.ends_all()) {
      EXPECT_EQ(line, "goes on");
      return;
    }
    EXPECT_THAT(line, StartsWith(run.is_late() ? "canceled: rank 2, " : "peer_lost: rank 2, "));
    EXPECT_THAT(line, HasSubstr(run.of_row().text));
    expect_names_rank_1(run, line);
  }
  /// A rank that stops in an operation may have given its part to one of the others alone. That one then
  /// waits in the next operation for both.
  static void expect_names_rank_1(const FaultRun& run, const std::string& line) {
    const std::string expected = run.is_late() ? run.of_row().late_text : "rank 1 is gone";
    if (run.is_late() && run.moment == Moment::inside && expected == not_come)
      EXPECT_THAT(
          line, testing::AnyOf(HasSubstr(expected), HasSubstr("ranks 1 and 2 have not come within 1000 ms")));
    else
      EXPECT_THAT(line, HasSubstr(expected));
  }
  static void expect_in_time(const FaultRun& run, long long ms) {
    std::chrono::milliseconds limit = bound;
    if (run.is_late()) limit += limit_of_rank_0 + run.of_row().longer;
    EXPECT_LT(ms, limit.count());
  }
};

std::vector<std::size_t> all_rows() {
  std::vector<std::size_t> all(rows.size());
  for (std::size_t row = 0; row < all.size(); ++row) all[row] = row;
  return all;
}
/// One of each kind.
std::vector<std::size_t> some_rows() {
  std::vector<std::size_t> some;
  for (const std::size_t row : all_rows())
    for (const char* name : {"broadcast_from_another", "send", "recv_from_any", "put"})
      if (rows[row].name == std::string(name)) some.push_back(row);
  return some;
}
std::string name_of(const testing::TestParamInfo<std::size_t>& row) { return rows[row.param].name; }

TEST_P(Survivors, are_told_of_a_rank_that_is_killed) { live_through(Fault::killed, Moment::before); }
TEST_P(Survivors, are_told_of_a_rank_that_stands_still) { live_through(Fault::stopped, Moment::before); }
INSTANTIATE_TEST_SUITE_P(Some, Survivors, testing::ValuesIn(some_rows()), name_of);

class SurvivorsOfAll : public Survivors {};
TEST_P(SurvivorsOfAll, are_told_of_a_rank_with_a_fault_before_or_in_the_operation_slow) {
  for (const Fault fault : {Fault::killed, Fault::stopped}) {
    live_through(fault, Moment::before);
    if (rows[GetParam()].may_be_repeated) live_through(fault, Moment::inside);
  }
}
TEST_P(SurvivorsOfAll, go_on_with_a_rank_that_was_started_again_slow) {
  live_through(Fault::restarted, Moment::before);
}
INSTANTIATE_TEST_SUITE_P(All, SurvivorsOfAll, testing::ValuesIn(all_rows()), name_of);

// ---------------------------------------------------------------- the table

std::string cell(Sees sees, const FaultRow& row) {
  const std::string late = std::string("`timed_out`, `") + row.late_text + "`";
  switch (sees) {
    case Sees::gone:
      return "`peer_lost`, `rank 1 is gone`, on all ranks";
    case Sees::gone_alone:
      return "`peer_lost`, `rank 1 is gone`; the communicator goes on";
    case Sees::late:
      return late + "; `canceled` with this text on the other ranks";
    case Sees::late_alone:
      return late + "; the communicator goes on";
    default:
      return "nothing: it is done";
  }
}

/// Operations with the same cells stand in one row.
std::string table() {
  std::vector<std::pair<std::string, std::vector<std::string>>> lines;
  for (const FaultRow& row : rows) {
    const std::string cells = " | " + cell(row.killed, row) + " | " + cell(row.stopped, row) + " |\n";
    auto line = std::ranges::find(lines, cells, [](const auto& each) { return each.first; });
    if (line == lines.end()) line = lines.insert(lines.end(), {cells, {}});
    if (std::ranges::count(line->second, row.in_doc) == 0) line->second.emplace_back(row.in_doc);
  }
  std::string text =
      "| operation | rank 1 is killed, also if it is started again | rank 1 stands still |\n|---|---|---|\n";
  for (const auto& [cells, names] : lines) {
    text += "| ";
    for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ", ") + names[i];
    text += cells;
  }
  return text;
}

TEST(SurvivorsInDocuments, the_table_is_what_these_tests_expect) {
  std::ifstream file(std::string(HEADRACE_TEST_DIR) + "/../docs/collectives.md");
  std::stringstream document;
  document << file.rdbuf();
  EXPECT_NE(document.str().find(table()), std::string::npos) << "docs/collectives.md is to have\n" << table();
}

}  // namespace

bool is_faulty_program(const std::string& program) { return program.find('/') != std::string::npos; }

int run_faulty_rank(char** words) {
  FaultyRank(words).run();
  return 0;
}

}  // namespace headrace::test
