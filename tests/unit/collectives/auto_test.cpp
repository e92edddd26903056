// SPDX-License-Identifier: Apache-2.0
// Communicators over `auto`: p2p over the fake GPUs of the plugin and a fake NCCL on the same GPUs. Which one
// had a call shows in the calls that the fake NCCL counts.
#include "gpu_ranks.hpp"
#include "gpu_windows.hpp"
#include "handles.hpp"

#include "choice/backend.hpp"
#include "p2p/backend.hpp"
#include "p2p/settings.hpp"
#include "support/fake_nccl.hpp"
#include "support/plugin_gpu_source.hpp"
#include "support/temporary_folder.hpp"

#include <headrace/comm_backend.hpp>
#include <headrace/comm_tuning.hpp>

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Ranks are threads: what the candidate of this name answers on one of them, if it is not empty.
thread_local std::map<std::string, std::string> refused_here;

Result<headrace_comm_backend_v1> unless_refused(const std::string& name,
                                                const Result<headrace_comm_backend_v1>& table) {
  const auto refused = refused_here.find(name);
  if (refused == refused_here.end()) return table;
  return Error{Code::not_supported, refused->second};
}

constexpr std::array candidate_names{"p2p", "nccl"};
/// What the candidates are told of registered memory on this rank, and the one that refuses it.
thread_local std::vector<std::string> told_here;
thread_local std::string refuses_memory_here;

/// A table that keeps a record of what is registered, instead of registering it.
template <std::size_t Candidate>
Result<headrace_comm_backend_v1> recording(Result<headrace_comm_backend_v1> table) {
  if (!table) return table;
  table->tensor_register = [](void*, const headrace_comm_elements_v1* tensor, std::int64_t,
                              std::uint64_t* registration, headrace_text_v1* why) -> std::int32_t {
    const std::string name = candidate_names[Candidate];
    told_here.push_back(name + " gets " + std::to_string(tensor->count));
    *registration = 40 + Candidate;
    if (name != refuses_memory_here) return HEADRACE_OK;
    why->length = std::string("no such memory").copy(why->data, why->capacity);
    return HEADRACE_NOT_SUPPORTED;
  };
  table->tensor_deregister = [](void*, std::uint64_t registration, std::int64_t,
                                headrace_text_v1*) -> std::int32_t {
    told_here.push_back(candidate_names[Candidate] + (" lets go of " + std::to_string(registration)));
    return HEADRACE_OK;
  };
  return table;
}

/// The backend over the fakes, registered once.
struct FakeAuto {
  FakeAuto()
      : nccl("_beside"),
        nccl_backend("nccl", {[] { return Result<cuda::DriverTable>(*plugin_gpu().driver); },
                              [this] { return nccl.load(); }}),
        p2p_backend("p2p", p2p_source()),
        backend("auto_fake", source()) {
    nccl.run_on(
        [](cuda::Stream stream, std::function<bool()> work) { plugin_gpu().queue(stream, std::move(work)); });
    const headrace_comm_backend_v1 table = backend.table();
    must(register_comm_backend(&table));
  }
  static FakeAuto& the() {
    static auto& fake = *new FakeAuto;
    return fake;
  }

  const FakeNccl nccl;
  nccl::Backend nccl_backend;
  p2p::Backend p2p_backend;
  choice::Backend backend;

 private:
  static p2p::Source p2p_source() {
    p2p::Source source{plugin_gpu_source(), gpu_backend};
    source.agent.options["plugin_path"] = gpu_plugin_folder;
    return source;
  }
  choice::Source source() {
    choice::Source source;
    source.driver = []() -> Result<cuda::DriverTable> { return *plugin_gpu().driver; };
    std::vector<std::string> p2p_hints;
    for (const OptionRow& row : p2p::hint_rows) p2p_hints.emplace_back(row.name);
    source.candidates = {
        {"p2p",
         [this] { return recording<0>(unless_refused("p2p", p2p_backend.table())); },
         p2p_hints,
         {"blocks"}},
        {"nccl", [this] { return recording<1>(unless_refused("nccl", nccl_backend.table())); },
         nccl::hint_names(), nccl::call_hint_names()}};
    source.read_tuning = [](const std::string& path) -> Result<CommTuning> {
      if (!path.empty()) return read_comm_tuning(path);
      return CommTuning{"of the tests", {{.up_to_bytes = 256 << 10, .backend = "p2p"}, {.backend = "nccl"}}};
    };
    return source;
  }
};

/// How often the fake NCCL has been called for a function.
int nccl_calls(const char* function = "ncclAllReduce") { return FakeAuto::the().nccl.calls(function); }

class CommOnAuto : public testing::Test {
 protected:
  CommOnAuto() { FakeAuto::the(); }

  [[nodiscard]] CommOptions options(int rank, int size, const std::string& name) const {
    CommOptions options = rank_options(rank, size, name);
    options.backend = "auto_fake";
    options.device = "cuda:" + std::to_string(rank % gpus_);
    options.hints = hints_;
    return options;
  }
  void with_ranks(int size, const std::function<void(Comm&, const RankGpu&)>& body) const {
    const std::string name = unique_comm_name();
    std::barrier<> ranks(size);
    on_threads(size, [&](int rank) {
      const RankGpu gpu(*plugin_gpu().driver, rank % gpus_, ranks);
      Comm comm = must(Comm::open(options(rank, size, name)));
      body(comm, gpu);
    });
  }
  /// What ranks get that open.
  std::vector<std::string> refusals(int size, const std::function<void(CommOptions&)>& change) const {
    const std::string name = unique_comm_name();
    std::vector<std::string> texts(static_cast<std::size_t>(size));
    on_threads(size, [&](int rank) {
      CommOptions mine = options(rank, size, name);
      change(mine);
      const auto opened = Comm::open(mine);
      if (!opened) texts[static_cast<std::size_t>(rank)] = opened.error().message;
      refused_here.clear();
    });
    return texts;
  }
  /// Entries that a communicator reads.
  void use_table(std::vector<CommTuningEntry> entries) {
    hints_["table"] = must(write_comm_tuning({"", std::move(entries)}, folder_.path() + "/table.json"));
  }
  void use_text(const std::string& text) {
    std::ofstream(folder_.path() + "/text.json") << text;
    hints_["table"] = folder_.path() + "/text.json";
  }

  const TemporaryFolder folder_;
  std::map<std::string, std::string> hints_;
  int gpus_ = plugin_gpus;
};

void reduce(Comm& comm, const RankGpu& gpu, std::size_t count, const OpOptions& options) {
  OnGpu<int> numbers(gpu, filled(count, 1));
  ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, options));
  must(gpu.other_stream().wait_idle());
  EXPECT_THAT(numbers.values(), testing::Each(comm.size()));
}

constexpr std::size_t small = 1'000, large = 200'000;  // ints: below and above 256 KiB

TEST_F(CommOnAuto, gives_small_calls_to_p2p_and_large_ones_to_nccl) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    const int before = nccl_calls();
    gpu.meet();
    reduce(comm, gpu, small, gpu.on_stream());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before);
    gpu.meet();
    reduce(comm, gpu, large, gpu.on_stream());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before + 2);
    EXPECT_EQ(comm.backend(), "auto_fake");
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, registers_memory_with_each_candidate) {
  with_ranks(2, [](Comm& comm, const RankGpu&) {
    std::vector<int> one(3), other(5);
    must(comm.tensor_register(one));
    must(comm.tensor_register(other));
    must(comm.tensor_deregister(one));
    EXPECT_THAT(told_here, ElementsAre("p2p gets 3", "nccl gets 3", "p2p gets 5", "nccl gets 5",
                                       "nccl lets go of 41", "p2p lets go of 40"));
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, looks_whether_tensors_are_registered) {
  use_table({{.registered = true, .backend = "nccl"}, {.backend = "p2p"}});
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    std::vector<int> one(3);
    for (const bool registered : {false, true, false}) {
      if (registered) must(comm.tensor_register(one));
      gpu.meet();
      const int before = nccl_calls();
      gpu.meet();
      reduce(comm, gpu, small, gpu.on_stream());
      gpu.meet();
      EXPECT_EQ(nccl_calls(), before + (registered ? 2 : 0));
      if (registered) must(comm.tensor_deregister(one));
    }
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, takes_memory_back_if_a_candidate_refuses_it) {
  with_ranks(2, [](Comm& comm, const RankGpu&) {
    std::vector<int> memory(3);
    refuses_memory_here = "nccl";
    const auto refused = comm.tensor_register(memory);
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("nccl: no such memory"));
    EXPECT_THAT(told_here, ElementsAre("p2p gets 3", "nccl gets 3", "p2p lets go of 40"));
    EXPECT_FALSE(comm.is_aborted());
    refuses_memory_here.clear();
    must(comm.tensor_register(memory));
    must(comm.finalize());
  });
}

/// Tables that give calls to one of both, and to both in turn.
struct Way {
  const char* name;
  int size, gpus;
  std::vector<CommTuningEntry> table;
  bool captures = true;  ///< the fake NCCL has no graphs
};
class CommOnAutoTables : public CommOnAuto, public testing::WithParamInterface<Way> {
 protected:
  CommOnAutoTables() {
    gpus_ = GetParam().gpus;
    use_table(GetParam().table);
  }
};
std::vector<CommTuningEntry> in_turn() {
  std::vector<CommTuningEntry> table;
  for (int i = 2; i <= 17; ++i)
    table.push_back({.operation = static_cast<CommOperation>(i), .backend = i % 2 == 0 ? "p2p" : "nccl"});
  return table;
}
INSTANTIATE_TEST_SUITE_P(Ways, CommOnAutoTables,
                         testing::Values(Way{"alone", 1, 1, in_turn()}, Way{"two_in_turn", 2, 3, in_turn()},
                                         Way{"three_by_p2p", 3, 3, {{.backend = "p2p"}}},
                                         Way{"three_by_nccl", 3, 3, {{.backend = "nccl"}}, false},
                                         Way{"three_by_size",
                                             3,
                                             3,
                                             {{.up_to_bytes = 400, .backend = "nccl"}, {.backend = "p2p"}}}),
                         [](const auto& one) { return one.param.name; });

TEST_P(CommOnAutoTables, does_all) {
  with_ranks(GetParam().size, [](Comm& comm, const RankGpu& gpu) {
    reduce_all_ways(comm, gpu);
    move_all_ways(comm, gpu);
    send_around(comm, gpu);
    overlap(comm, gpu);
    if (GetParam().captures) capture(comm, gpu);
    split_backwards(comm, gpu);
    if (comm.size() > 1)
      abort_one_rank(comm, gpu);
    else
      must(comm.finalize());
  });
}

// --- which candidates are open

TEST_F(CommOnAuto, goes_on_with_the_other_one_if_a_rank_cannot_open_one) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(2);
  on_threads(2, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank, ranks);
    if (rank == 1) refused_here["nccl"] = "no libnccl.so.2 here";
    Comm comm = must(Comm::open(options(rank, 2, name)));
    const int before = nccl_calls();
    gpu.meet();
    reduce(comm, gpu, large, gpu.on_stream());
    EXPECT_EQ(nccl_calls(), before);
    OnGpu<int> numbers(gpu, filled(small, 1));
    MessageOptions options;
    options.stream = gpu.stream();
    options.tag = 5;
    send_around(comm, gpu);  // by p2p then
    const auto sent = comm.send(numbers.elements(), 1 - rank, options);
    EXPECT_EQ(sent.code(), Code::not_supported);
    EXPECT_THAT(sent.error().message, HasSubstr("p2p: p2p has no tags, and tag 5 is given"));
    gpu.meet();
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, says_on_all_ranks_why_none_opens) {
  const auto texts = refusals(3, [](CommOptions& mine) {
    if (mine.rank == 1) refused_here["nccl"] = "no libnccl.so.2 here";
    if (mine.rank == 2) refused_here["p2p"] = "no kernels here";
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text,
                HasSubstr("none of its backends opens on all ranks. p2p: rank 2: no kernels here; nccl: "
                          "rank 1: no libnccl.so.2 here"));
}

TEST_F(CommOnAuto, a_group_has_what_its_parent_has_not) {
  plugin_gpu().reach(0, 2, false);
  with_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    const int before = nccl_calls();
    gpu.meet();
    reduce(comm, gpu, small, gpu.on_stream());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before + 3);  // p2p does not open: GPU 0 does not reach GPU 2
    const std::array two{0, 1};
    auto part = must(comm.rank() == 2 ? comm.split({}, "two") : comm.split(two, "two"));
    gpu.meet();
    if (part) reduce(*part, gpu, small, gpu.on_stream());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before + 3);
    if (part) must(part->finalize());
    must(comm.finalize());
  });
  plugin_gpu().reach(0, 2, true);
}

TEST_F(CommOnAuto, says_which_rank_has_not_come) {
  CommOptions mine = options(0, 2, unique_comm_name());
  mine.meeting_timeout = milliseconds(30);
  EXPECT_EQ(Comm::open(mine).code(), Code::timed_out);
}

// --- order

/// The communicator of one rank, whose calls on other streams would not wait by themselves.
class AutoOrder : public CommOnAuto {
 protected:
  /// A call waits behind work of the test; the second one is of another candidate and of another stream.
  void runs_in_order(std::size_t first, std::size_t second, bool async) const {
    with_ranks(1, [&](Comm& comm, const RankGpu& gpu) {
      OnGpu<int> one(gpu, filled(first, 1)), two(gpu, filled(second, 1)), to(gpu, filled(second, 0));
      gpu.wait();
      std::atomic<bool> go{false};
      plugin_gpu().queue(gpu.stream(), [&go] { return go.load(); });
      ok(comm.all_reduce(one.elements(), ReduceOp::sum, gpu.on_stream(async)));
      OpOptions other;
      other.stream = gpu.other_stream().handle();
      other.async = async;
      const Work work = must(comm.all_reduce(two.elements(), to.elements(), ReduceOp::sum, other));
      EXPECT_EQ(work.status(), WorkStatus::in_progress);
      EXPECT_EQ(*static_cast<const int*>(to.elements().data),
                0);  // the fake runs at once what waits for nothing
      if (async) {   // later work of it goes on
        EXPECT_TRUE(must(gpu.other_stream().poll_idle()));
      }
      go = true;
      must(work.wait());
      must(gpu.other_stream().wait_idle());
      EXPECT_THAT(to.values(), testing::Each(1));
      must(comm.finalize());
    });
  }
};

TEST_F(AutoOrder, a_call_of_nccl_waits_on_the_gpu_for_one_of_p2p) { runs_in_order(small, large, false); }
TEST_F(AutoOrder, a_call_of_p2p_waits_on_the_gpu_for_one_of_nccl) { runs_in_order(large, small, false); }
TEST_F(AutoOrder, asynchronous_calls_wait_for_one_another) {
  runs_in_order(small, large, true);
  runs_in_order(large, small, true);
}

TEST_F(AutoOrder, calls_on_many_streams_end_with_the_right_elements) {
  hints_ = {{"packet_bytes", "64"}, {"chunk_bytes", "64"}, {"slots", "8"}};
  use_table({{.up_to_bytes = 400, .backend = "p2p"}, {.backend = "nccl"}});
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    std::minstd_rand random(7);  // the same on all ranks
    std::vector<std::unique_ptr<OnGpu<int>>> all;
    std::vector<Work> works;
    for (int i = 0; i < 100; ++i) {
      all.push_back(std::make_unique<OnGpu<int>>(gpu, filled(1 + random() % 200, i)));
      OpOptions options = gpu.on_stream(random() % 2 == 0);
      works.push_back(must(comm.all_reduce(all.back()->elements(), ReduceOp::sum, options)));
    }
    for (const Work& work : works) must(work.wait());
    for (int i = 0; i < 100; ++i)
      EXPECT_THAT(all[static_cast<std::size_t>(i)]->values(), testing::Each(2 * i));
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, coalesced_calls_go_to_nccl_as_one_group) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> one(gpu, filled(small, 1)), two(gpu, filled(small, 2)), from(gpu, filled(small, comm.rank()));
    OnGpu<int> to(gpu, filled(small, -1));
    reduce(comm, gpu, small, gpu.on_stream());
    const int before = nccl_calls();
    gpu.meet();
    MessageOptions message;
    message.stream = gpu.stream();
    must(comm.start_coalescing());
    ok(comm.all_reduce(one.elements(), ReduceOp::sum, gpu.on_stream()));
    ok(comm.send(from.elements(), 1 - comm.rank(), message));
    ok(comm.recv(to.elements(), 1 - comm.rank(), message));
    ok(comm.all_reduce(two.elements(), ReduceOp::sum, gpu.on_stream()));
    must(must(comm.end_coalescing()).wait());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before + 4);
    EXPECT_THAT(one.values(), testing::Each(2));
    EXPECT_THAT(two.values(), testing::Each(4));
    EXPECT_THAT(to.values(), testing::Each(1 - comm.rank()));
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, gives_messages_of_any_length_to_nccl_alone_or_in_a_batch) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    for (const std::size_t count : {small, large}) {
      OnGpu<int> from(gpu, filled(count, 7)), to(gpu, filled(count, -1));
      MessageOptions options;
      options.stream = gpu.stream();
      gpu.meet();
      const int before = nccl_calls("ncclSend");
      gpu.meet();
      // A rank does not know how the other one issues its message.
      if (comm.rank() == 0) {
        ok(comm.send(from.elements(), 1, options));
      } else {
        Batch batch = comm.batch();
        must(batch.recv(to.elements(), 0));
        ok(batch.issue(gpu.on_stream()));
      }
      EXPECT_THAT(to.values(), testing::Each(comm.rank() == 0 ? -1 : 7));
      gpu.meet();
      EXPECT_EQ(nccl_calls("ncclSend"), before + 1);
    }
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, what_nccl_does_not_reduce_goes_to_p2p) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<std::int16_t> numbers(gpu, std::vector<std::int16_t>(2 * large, 3));
    ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    EXPECT_THAT(numbers.values(), testing::Each(6));
    must(comm.finalize());
  });
}

// --- one communicator to its caller

TEST_F(CommOnAuto, hooks_hear_of_each_call_once_and_numbers_have_no_gaps) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    std::mutex mutex;
    std::vector<std::uint64_t> scheduled;
    int completed = 0;
    CommHooks hooks;
    hooks.scheduled = [&](const CommCall& call) {
      const std::scoped_lock lock(mutex);
      scheduled.push_back(call.number);
    };
    hooks.completed = [&](const CommCallId&, const Error&) {
      const std::scoped_lock lock(mutex);
      ++completed;
    };
    comm.add_hooks(std::move(hooks));
    for (const std::size_t count : {small, large, small}) reduce(comm, gpu, count, gpu.on_stream());
    must(comm.finalize());
    EXPECT_THAT(scheduled, ElementsAre(1, 2, 3));
    EXPECT_EQ(completed, 3);
  });
}

TEST_F(CommOnAuto, nccl_sleeps_while_it_is_suspended) {
  const int suspended = nccl_calls("ncclCommSuspend"), resumed = nccl_calls("ncclCommResume");
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    reduce(comm, gpu, large, gpu.on_stream());
    must(comm.suspend());
    EXPECT_TRUE(comm.is_suspended());
    EXPECT_THAT(comm.barrier().error().message, HasSubstr("is suspended: call resume on all ranks first"));
    must(comm.resume());
    reduce(comm, gpu, small, gpu.on_stream());
    reduce(comm, gpu, large, gpu.on_stream());
    must(comm.suspend());
    must(comm.finalize());
  });
  EXPECT_EQ(nccl_calls("ncclCommSuspend"), suspended + 4);
  EXPECT_EQ(nccl_calls("ncclCommResume"), resumed + 2);
}

TEST_F(CommOnAuto, is_awake_if_no_backend_can_sleep) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(2);
  on_threads(2, [&](int rank) {
    refused_here["nccl"] = "left out";
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus_, ranks);
    Comm comm = must(Comm::open(options(rank, 2, name)));
    const auto failed = comm.suspend();
    EXPECT_EQ(failed.code(), Code::not_supported);
    EXPECT_THAT(failed.error().message, HasSubstr("none of its open backends (p2p) has suspend"));
    EXPECT_FALSE(comm.is_suspended());
    reduce(comm, gpu, small, gpu.on_stream());
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, windows_are_those_of_p2p) { with_ranks(2, use_windows); }

TEST_F(CommOnAuto, windows_are_those_of_nccl_where_p2p_does_not_open) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(2);
  on_threads(2, [&](int rank) {
    if (rank == 1) refused_here["p2p"] = "left out";
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus_, ranks);
    Comm comm = must(Comm::open(options(rank, 2, name)));
    Window window = must(comm.new_window());
    must(window.allocate(1003, DType::int32));
    put_around(comm, gpu, window);
    must(window.tensor_deregister());
    must(comm.finalize());
    refused_here.clear();
  });
}

// --- ranks that the caller brings together

TEST_F(CommOnAuto, makes_a_communicator_of_ranks_that_the_caller_brings_together) {
  use_table({{.operation = CommOperation::barrier, .backend = "p2p"}, {.backend = "nccl"}});
  Handles handles(3);
  std::barrier<> ranks(3);
  on_threads(3, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus_, ranks);
    CommOptions alone = options(0, 1, unique_comm_name());
    alone.device = "cuda:" + std::to_string(rank % gpus_);
    const Comm one = must(Comm::open(alone));
    Comm all = must(one.reconfigure("first", handles.exchange(one, static_cast<std::size_t>(2 - rank))));
    EXPECT_EQ(all.rank(), 2 - rank);
    EXPECT_EQ(all.size(), 3);
    EXPECT_EQ(all.backend(), "auto_fake");
    reduce(all, gpu, small, gpu.on_stream());
    ok(all.barrier(gpu.on_stream()));  // what the table gives to p2p goes to nccl
    // Its groups need no meeting place, either.
    const std::vector<int> group = all.rank() == 1 ? std::vector<int>() : std::vector<int>{2, 0};
    auto part = must(all.split(group, "part"));
    EXPECT_EQ(part.has_value(), all.rank() != 1);
    if (part) reduce(*part, gpu, small, gpu.on_stream());
    gpu.meet();
    const std::array excluded{1};
    if (all.rank() != 1) {
      Comm left = must(all.shrink(excluded));
      EXPECT_EQ(left.size(), 2);
      reduce(left, gpu, small, gpu.on_stream());
    }
    gpu.meet();
  });
}

TEST_F(CommOnAuto, grows_by_a_rank_that_joins) {
  const std::string name = unique_comm_name();
  Handles handles(3);
  std::barrier<> ranks(3);
  on_threads(3, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus_, ranks);
    CommOptions mine = rank == 2 ? options(0, 1, unique_comm_name()) : options(rank, 2, name);
    mine.device = "cuda:" + std::to_string(rank % gpus_);
    Comm comm = must(Comm::open(mine));
    Comm all = must(comm.reconfigure("first", handles.exchange(comm, static_cast<std::size_t>(rank))));
    EXPECT_EQ(all.size(), 3);
    reduce(all, gpu, large, gpu.on_stream());
    gpu.meet();
    reduce(comm, gpu, small, gpu.on_stream());  // the old one stays
    gpu.meet();
  });
}

TEST_F(CommOnAuto, says_that_no_open_backend_reconfigures) {
  with_ranks(1, [](Comm& comm, const RankGpu&) {
    const auto refused = comm.reconfigure("first", std::vector<std::string>{"no handle"});
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    must(comm.finalize());
  });
  on_threads(1, [&](int rank) {
    refused_here["nccl"] = "left out";
    const Comm comm = must(Comm::open(options(rank, 1, unique_comm_name())));
    const auto refused = comm.init_handle();
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("none of its open backends (p2p) has reconfigure"));
    refused_here.clear();
  });
}

TEST_F(CommOnAuto, a_late_call_names_backend_and_rank) { with_ranks(3, wait_in_vain); }

TEST_F(CommOnAuto, an_abort_ends_a_call_of_nccl_on_the_other_ranks) {
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    gpu.meet();
    if (comm.rank() == 1) {
      gpu.meet();
      return comm.abort("it dies");
    }
    OnGpu<int> numbers(gpu, filled(large, 1));
    const Work work = must(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
    gpu.meet();
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_THAT(work.error().message, HasSubstr("it dies"));  // p2p tells it; NCCL would not
    EXPECT_TRUE(comm.is_aborted());
  });
}

// --- hints

TEST_F(CommOnAuto, a_hint_goes_to_the_candidates_that_know_it) {
  hints_ = {{"maxCTAs", "5"}, {"blocks", "2"}, {"is_high_priority_stream", "true"}};
  with_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    EXPECT_EQ(FakeAuto::the().nccl.last_config().max_ctas, 5);
    OpOptions options = gpu.on_stream();
    options.hints["blocks"] = "1";
    reduce(comm, gpu, small, options);
    reduce(comm, gpu, large, options);
    options.hints["maxCTAs"] = "3";
    reduce(comm, gpu, large, options);
    EXPECT_EQ(FakeAuto::the().nccl.last_call_config().max_ctas, 3);
    options.hints = {{"block", "1"}};
    OnGpu<int> numbers(gpu, filled(small, 1));
    const auto refused = comm.all_reduce(numbers.elements(), ReduceOp::sum, options);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("did you mean blocks?"));
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, refuses_hints_that_no_candidate_knows_or_takes) {
  hints_ = {{"maxCTA", "5"}};
  EXPECT_THAT(refusals(1, [](CommOptions&) {}),
              ElementsAre(AllOf(HasSubstr("none of its backends has the hint \"maxCTA\""),
                                HasSubstr("did you mean maxCTAs?"))));
  hints_ = {{"blocks", "many"}};
  for (const std::string& text : refusals(2, [](CommOptions&) {}))
    EXPECT_THAT(text, AllOf(HasSubstr("p2p"), HasSubstr("blocks"), HasSubstr("many")));
}

// --- the table

TEST_F(CommOnAuto, the_table_is_that_of_rank_0) {
  use_table({{.backend = "nccl"}});
  const std::string name = unique_comm_name();
  std::barrier<> ranks(2);
  on_threads(2, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank, ranks);
    CommOptions mine = options(rank, 2, name);
    if (rank == 1) mine.hints["table"] = "/nowhere";
    Comm comm = must(Comm::open(mine));
    const int before = nccl_calls();
    gpu.meet();
    reduce(comm, gpu, small, gpu.on_stream());
    gpu.meet();
    EXPECT_EQ(nccl_calls(), before + 2);
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, a_part_takes_no_other_table) {
  with_ranks(1, [](Comm& comm, const RankGpu&) {
    const auto part = comm.split(std::array{0}, "part", {.hints = {{"table", "x.json"}}});
    EXPECT_EQ(part.code(), Code::invalid_argument);
    EXPECT_THAT(part.error().message, HasSubstr("hint table is x.json, and it is fixed"));
    must(comm.finalize());
  });
}

TEST_F(CommOnAuto, says_on_all_ranks_what_is_wrong_with_the_table) {
  use_text("{\"version\": 1, \"entries\": [{\"backend\": \"ncl\"}]}");
  for (const std::string& text : refusals(2, [](CommOptions&) {}))
    EXPECT_THAT(text,
                AllOf(HasSubstr("text.json, entry 1: backend is \"ncl\", and one of p2p, nccl is expected"),
                      HasSubstr("headrace tune")));
}

TEST(CommOnAutoOfTheCpu, is_host) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 2, name);
    options.backend = "auto";
    options.hints["table"] = "/nowhere";
    Comm comm = must(Comm::open(options));
    EXPECT_EQ(comm.backend(), "auto");
    std::vector<int> numbers{rank, 1};
    ok(comm.all_reduce(numbers, ReduceOp::sum));
    EXPECT_THAT(numbers, ElementsAre(1, 2));
    must(comm.finalize());
  });
}

}  // namespace
}  // namespace headrace::test
