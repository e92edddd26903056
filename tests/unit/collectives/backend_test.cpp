// SPDX-License-Identifier: Apache-2.0
// Backends of communicators: how they are found, and `fake`.
#include "ranks.hpp"

#include <headrace/comm_backend.hpp>
#include <headrace/version.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace headrace::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

CommOptions on_backend(const std::string& backend, int rank = 0, int size = 1) {
  CommOptions options = rank_options(rank, size, unique_comm_name());
  options.backend = backend;
  options.hints.clear();
  return options;
}

/// A table that is right, for tests that spoil it. Nothing of it is called.
headrace_comm_backend_v1 sound_table(const char* name) {
  headrace_comm_backend_v1 table{};
  table.struct_size = sizeof table;
  table.abi_major = HEADRACE_COMM_ABI_MAJOR;
  table.name = name;
  table.version = "1";
  table.devices = HEADRACE_COMM_MOVES_HOST_MEMORY;
  table.open = [](void*, const headrace_comm_setup_v1*, void**, headrace_text_v1*) { return 0; };
  table.close = [](void*) {};
  table.issue = [](void*, const headrace_comm_call_v1*, std::uint64_t, headrace_text_v1*) { return 0; };
  table.abort = [](void*, const char*, std::size_t) {};
  return table;
}

TEST(CommOptions, have_defaults) {
  const CommOptions options;
  EXPECT_EQ(options.backend, "host");
  EXPECT_EQ(options.name, "world");
  EXPECT_EQ(options.timeout, std::chrono::seconds(600));
  EXPECT_EQ(options.meeting_timeout, std::chrono::seconds(120));
  EXPECT_FALSE(options.abort_on_error);
  EXPECT_TRUE(options.hints.empty());
  const Comm comm = must(Comm::open({}));
  EXPECT_EQ(comm.backend(), "host");
  EXPECT_EQ(comm.options().backend, "host");
}

TEST(CommOptions, are_those_that_the_caller_gave_with_what_was_set_since) {
  CommOptions options = on_backend("fake", 2, 4);
  options.timeout = std::chrono::seconds(5);
  options.hints = {{"a", "1"}};
  Comm comm = must(Comm::open(options));
  comm.set_timeout(std::chrono::seconds(7));
  must(comm.set_hints({{"b", "2"}}));
  EXPECT_EQ(comm.options().backend, "fake");
  EXPECT_EQ(comm.options().rank, 2);
  EXPECT_EQ(comm.options().size, 4);
  EXPECT_EQ(comm.options().timeout, std::chrono::seconds(7));
  EXPECT_THAT(comm.options().hints, ElementsAre(std::pair("a", "1"), std::pair("b", "2")));
}

TEST(CommOptions, of_a_rank_that_cannot_be_are_refused_by_every_backend) {
  for (const char* backend : {"host", "fake"}) {
    CommOptions options = on_backend(backend, 3, 3);
    EXPECT_THAT(Comm::open(options).error().message, HasSubstr("rank 3 of size 3"));
    options.rank = 0;
    options.name = "";
    EXPECT_EQ(Comm::open(options).code(), Code::invalid_argument);
  }
}

TEST(CommOptions, device_is_the_host_unless_it_is_given) {
  EXPECT_EQ(CommOptions().device, "cpu");
  EXPECT_EQ(must(Comm::open({})).device(), Device{});
  CommOptions options = on_backend("fake");
  options.device = "CUDA:3";
  Comm comm = must(Comm::open(options));
  EXPECT_EQ(comm.options().device, "cuda:3");
  EXPECT_EQ(comm.device(), (Device{Device::Kind::cuda, 3}));
  EXPECT_EQ(must(comm.split(std::array{0}, "part"))->device(), comm.device());
  options.device = "gpu";
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("there is no device \"gpu\": write cpu, cuda"));
}

TEST(CommOptions, device_of_another_kind_than_the_backend_moves_is_refused) {
  headrace_comm_backend_v1 table = sound_table("moves_gpu_memory");
  table.devices = HEADRACE_COMM_MOVES_CUDA_MEMORY;
  must(register_comm_backend(&table));
  CommOptions options = on_backend("host");
  options.device = "cuda:0";
  const auto host = Comm::open(options);
  EXPECT_EQ(host.code(), Code::not_supported);
  EXPECT_THAT(host.error().message, HasSubstr("backend host does not move memory of cuda:0: use another"));
  EXPECT_THAT(host.error().message, HasSubstr("moves_gpu_memory"));
  options.backend = "moves_gpu_memory";
  options.device = "cpu";
  const auto gpu = Comm::open(options);
  EXPECT_EQ(gpu.code(), Code::not_supported);
  EXPECT_THAT(gpu.error().message, HasSubstr("does not move memory of cpu: use another backend (auto, "));
}

TEST(CommFactory, refuses_an_unknown_backend_and_names_the_nearest) {
  const auto opened = Comm::open(on_backend("hosts"));
  EXPECT_EQ(opened.code(), Code::not_found);
  EXPECT_THAT(opened.error().message, HasSubstr("there is no backend \"hosts\": did you mean host?"));
  EXPECT_THAT(opened.error().message, HasSubstr("There are: auto, "));
  EXPECT_THAT(opened.error().message, HasSubstr("Set HEADRACE_COMM_LIB_HOSTS to its library, or put "
                                                "libheadrace_comm_hosts.so into one of the folders"));
  EXPECT_EQ(Comm::open(on_backend("../x")).code(), Code::not_found);
  EXPECT_THAT(list_comm_backends(), testing::AllOf(Contains("fake"), Contains("host")));
}

TEST(CommFactory, says_that_gloo_is_a_class_of_the_python_package) {
  const auto opened = Comm::open(on_backend("gloo"));
  EXPECT_EQ(opened.code(), Code::not_found);
  if (is_comm_backend_left_out("gloo")) {
    EXPECT_THAT(opened.error().message, HasSubstr("build Headrace with HEADRACE_COMM_GLOO=ON"));
    return;
  }
  EXPECT_THAT(opened.error().message,
              HasSubstr("backend gloo is a class of Headrace's Python package: open it "
                        "in Python by headrace.new_comm(\"gloo\"), or use one of "
                        "these: auto, "));
}

/// A variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

const std::string plugins = HEADRACE_TEST_BIN_DIR "/plugins";

std::string library(const std::string& name) { return plugins + "/libheadrace_comm_" + name + ".so"; }

TEST(CommFactory, registers_a_name_once) {
  headrace_comm_backend_v1 table = sound_table("only_once");
  must(register_comm_backend(&table));
  EXPECT_THAT(list_comm_backends(), Contains("only_once"));
  for (const char* taken : {"only_once", "host", "fake"}) {
    table.name = taken;
    const auto again = register_comm_backend(&table);
    EXPECT_EQ(again.code(), Code::invalid_argument);
    EXPECT_THAT(again.error().message, HasSubstr("already: register this one under another name"));
  }
}

TEST(CommFactory, refuses_a_table_that_is_not_right) {
  const std::pair<std::function<void(headrace_comm_backend_v1&)>, std::string> cases[] = {
      {[](auto& table) { table.struct_size = 16; }, "struct_size 16"},
      {[](auto& table) { table.abi_major = 2; }, "version 2.0, this Headrace has 1.2"},
      {[](auto& table) { table.name = nullptr; }, "no valid name"},
      {[](auto& table) { table.name = "Not/Valid"; }, "no valid name"},
      {[](auto& table) { table.version = nullptr; }, "no version"},
      {[](auto& table) { table.devices = 0; }, "names no devices"},
      {[](auto& table) { table.open = nullptr; }, "no entry `open`"},
      {[](auto& table) { table.close = nullptr; }, "no entry `close`"},
      {[](auto& table) { table.issue = nullptr; }, "no entry `issue`"},
      {[](auto& table) { table.abort = nullptr; }, "no entry `abort`"},
      {[](auto& table) {
         table.window_close = [](void*, std::uint64_t, std::int64_t, headrace_text_v1*) -> std::int32_t {
           return HEADRACE_OK;
         };
       },
       "some of `window_open`"},
      {[](auto& table) { table.group_start = [](void*) {}; }, "one of `group_start` and `group_end`"},
      {[](auto& table) { table.suspend = [](void*, std::int64_t, headrace_text_v1*) { return 0; }; },
       "one of `suspend` and `resume`"},
      {[](auto& table) {
         table.init_handle = [](void*, const headrace_sink_v1*, headrace_text_v1*) { return 0; };
       },
       "one of `init_handle` and `reconfigure`"},
      {[](auto& table) {
         table.tensor_deregister = [](void*, std::uint64_t, std::int64_t, headrace_text_v1*) { return 0; };
       },
       "one of `tensor_register` and `tensor_deregister`"}};
  for (const auto& [spoil, expected] : cases) {
    headrace_comm_backend_v1 table = sound_table("spoilt");
    spoil(table);
    const auto refused = register_comm_backend(&table);
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr(expected));
  }
  EXPECT_EQ(register_comm_backend(nullptr).code(), Code::invalid_argument);
}

TEST(CommFactory, loads_the_library_that_the_variable_names) {
  const Variable variable("HEADRACE_COMM_LIB_THREADS", library("threads"));
  const Comm comm = must(Comm::open(on_backend("threads")));
  EXPECT_EQ(comm.backend(), "threads");
  EXPECT_EQ(comm.backend_version(), "1.2");
}

TEST(CommFactory, finds_a_library_in_the_folders_of_plugins) {
  EXPECT_EQ(Comm::open(on_backend("threads")).code(), Code::not_found);
  const Variable variable("HEADRACE_PLUGIN_PATH", plugins);
  EXPECT_EQ(must(Comm::open(on_backend("threads"))).backend(), "threads");
  EXPECT_THAT(list_comm_backends(), Contains("threads"));
}

const CommBackendInfo& info_of(const std::vector<CommBackendInfo>& all, const std::string& name) {
  const auto at = std::ranges::find(all, name, &CommBackendInfo::name);
  if (at == all.end()) std::abort();
  return *at;
}

TEST(CommFactory, a_survey_says_what_each_backend_is_or_why_it_cannot_be_used) {
  const Variable variable("HEADRACE_PLUGIN_PATH", plugins);
  const auto all = survey_comm_backends();
  const CommBackendInfo& host = info_of(all, "host");
  EXPECT_EQ(host.from, "linked in");
  EXPECT_EQ(host.devices, std::vector<std::string>{"cpu"});
  EXPECT_THAT(host.features, testing::IsSupersetOf({"split", "shrink", "windows"}));
  EXPECT_EQ(host.refusal, "");
  const CommBackendInfo& threads = info_of(all, "threads");
  EXPECT_EQ(threads.from, library("threads"));
  EXPECT_EQ(threads.version, "1.2");
  EXPECT_EQ(threads.refusal, "");
  const CommBackendInfo& other = info_of(all, "other_version");
  EXPECT_EQ(other.version, "");
  EXPECT_EQ(other.from, library("other_version"));
  EXPECT_THAT(other.refusal, HasSubstr("its table has version 2.0"));
}

TEST(CommFactory, a_survey_names_the_library_of_nccl_and_what_it_has_without_a_gpu) {
  const Variable variable("HEADRACE_NCCLX_LIBRARY", plugins + "/libfake_nccl_old.so");
  const auto all = survey_comm_backends();
  const CommBackendInfo& ncclx = info_of(all, "ncclx");
  EXPECT_EQ(ncclx.version, "2.20.5");
  EXPECT_THAT(ncclx.from, HasSubstr("libfake_nccl_old.so"));
  EXPECT_EQ(ncclx.devices, std::vector<std::string>{"cuda"});
  EXPECT_THAT(ncclx.features, testing::AllOf(Contains("split"), testing::Not(Contains("ncclAlltoAll"))));
}

TEST(CommFactory, says_what_is_wrong_with_a_library) {
  const Variable folder("HEADRACE_PLUGIN_PATH", plugins);
  const auto other = Comm::open(on_backend("other_version"));
  EXPECT_EQ(other.code(), Code::not_supported);
  EXPECT_THAT(other.error().message,
              HasSubstr(library("other_version") + " refused: its table has version 2.0"));
  EXPECT_THAT(Comm::open(on_backend("throws")).error().message, HasSubstr("threw: no such device"));
  const Variable missing("HEADRACE_COMM_LIB_LOST", plugins + "/lost.so");
  EXPECT_THAT(Comm::open(on_backend("lost")).error().message,
              HasSubstr("the variable HEADRACE_COMM_LIB_LOST names"));
  const Variable text("HEADRACE_COMM_LIB_TEXT", "/etc/passwd");
  EXPECT_THAT(Comm::open(on_backend("text")).error().message, HasSubstr("/etc/passwd refused: "));
  const Variable wrong("HEADRACE_COMM_LIB_WRONG_NAME", library("threads"));
  EXPECT_THAT(Comm::open(on_backend("wrong_name")).error().message,
              HasSubstr("its table is called `threads` but its library `wrong_name`"));
}

/// Runs `body` for each rank on the library whose ranks are threads.
void with_threads(int size, const std::function<void(Comm&)>& body) {
  const Variable variable("HEADRACE_COMM_LIB_THREADS", library("threads"));
  const std::string name = unique_comm_name();
  on_threads(size, [&](int rank) {
    CommOptions options = rank_options(rank, size, name);
    options.backend = "threads";
    options.hints.clear();
    Comm comm = must(Comm::open(options));
    body(comm);
    static_cast<void>(comm.finalize());
  });
}

TEST(CommLibrary, runs_collectives_and_messages) {
  with_threads(3, [](Comm& comm) {
    std::vector<int> numbers{comm.rank(), 10};
    ok(comm.all_reduce(numbers, ReduceOp::sum));
    EXPECT_THAT(numbers, ElementsAre(3, 30));
    std::vector<int> root{comm.rank() == 2 ? 7 : 0};
    OpOptions async;
    async.async = true;
    const Work work = must(comm.broadcast(root, 2, async));
    must(work.wait());
    EXPECT_THAT(root, ElementsAre(7));
    ok(comm.barrier());
    std::vector<int> message{comm.rank()};
    if (comm.rank() == 1) ok(comm.send(message, 0));
    if (comm.rank() == 0) {
      EXPECT_EQ(must(comm.recv(message, any_source)).source(), 1);
    }
    EXPECT_EQ(message.front(), comm.rank() == 2 ? 2 : 1);
    std::vector<float> floats{1};
    const auto refused = comm.all_reduce(floats, ReduceOp::sum);
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("all_reduce number 4"));
    EXPECT_THAT(refused.error().message, HasSubstr("it moves int32 alone"));
    ok(comm.barrier());
  });
}

TEST(CommLibrary, splits) {
  with_threads(3, [](Comm& comm) {
    const std::vector<int> group = comm.rank() == 1 ? std::vector<int>() : std::vector<int>{2, 0};
    auto part = must(comm.split(group, "part"));
    EXPECT_EQ(part.has_value(), comm.rank() != 1);
    if (part) {
      EXPECT_EQ(part->rank(), comm.rank() == 2 ? 0 : 1);
      EXPECT_THAT(part->ranks(), ElementsAre(2, 0));
      EXPECT_EQ(part->backend(), "threads");
      std::vector<int> numbers{comm.rank()};
      ok(part->all_reduce(numbers, ReduceOp::sum));
      EXPECT_THAT(numbers, ElementsAre(2));
      must(part->finalize());
    }
    ok(comm.barrier());
  });
}

TEST(CommLibrary, ends_on_all_ranks_by_an_abort_or_a_late_rank) {
  with_threads(3, [](Comm& comm) {
    if (comm.rank() == 0) {
      OpOptions short_one;
      short_one.timeout = std::chrono::milliseconds(30);
      EXPECT_EQ(comm.barrier(short_one).code(), Code::timed_out);
    } else {
      std::vector<int> numbers{1};
      const auto ended = comm.recv(numbers, 0);
      EXPECT_EQ(ended.code(), Code::canceled);
      EXPECT_THAT(ended.error().message, HasSubstr("has not ended it within 30 ms"));
    }
    EXPECT_TRUE(comm.is_aborted());
  });
}

TEST(FakeComm, ends_every_call_at_once_and_moves_nothing) {
  Comm comm = must(Comm::open(on_backend("fake", 1, 3)));
  EXPECT_EQ(comm.backend(), "fake");
  EXPECT_EQ(comm.backend_version(), HEADRACE_VERSION);
  EXPECT_THAT(comm.ranks(), ElementsAre(0, 1, 2));
  std::vector<int> numbers{1, 2, 3};
  OpOptions async;
  async.async = true;
  const Work work = must(comm.all_reduce(numbers, ReduceOp::sum, async));
  EXPECT_TRUE(work.is_completed());
  ok(comm.barrier());
  ok(comm.send(numbers, 0));
  const Work received = must(comm.recv(numbers, 2));
  EXPECT_EQ(received.status(), WorkStatus::completed);
  EXPECT_EQ(received.source(), 2);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
  must(comm.finalize());
  EXPECT_EQ(comm.barrier().code(), Code::invalid_argument);
}

TEST(FakeComm, checks_arguments_and_tells_hooks_as_every_backend) {
  Comm comm = must(Comm::open(on_backend("fake", 0, 2)));
  std::vector<std::string> told;
  CommHooks hooks;
  hooks.scheduled = [&](const CommCall& call) { told.push_back("scheduled " + std::to_string(call.number)); };
  hooks.completed = [&](const CommCallId& call, const Error& error) {
    told.push_back("completed " + std::to_string(call.number) + " " + std::string(code_name(error.code)));
  };
  comm.add_hooks(hooks);
  std::vector<int> numbers{1}, more{1, 2};
  EXPECT_EQ(comm.broadcast(numbers, 2).code(), Code::invalid_argument);
  EXPECT_EQ(comm.all_reduce(numbers, more, ReduceOp::sum).code(), Code::invalid_argument);
  ok(comm.broadcast(numbers, 1));
  ok(comm.recv(numbers, any_source));
  EXPECT_THAT(told, ElementsAre("scheduled 1", "completed 1 ok", "scheduled 1", "completed 1 ok"));
}

TEST(FakeComm, splits_without_other_ranks) {
  Comm comm = must(Comm::open(on_backend("fake", 2, 4)));
  const std::array group{3, 2};
  SplitOptions changes;
  changes.timeout = std::chrono::seconds(3);
  auto part = must(comm.split(group, "part", changes));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->rank(), 1);
  EXPECT_EQ(part->size(), 2);
  EXPECT_EQ(part->name(), "part");
  EXPECT_THAT(part->ranks(), ElementsAre(3, 2));
  EXPECT_EQ(part->options().timeout, std::chrono::seconds(3));
  const std::array last{1};
  auto smaller = must(part->split(last, "smaller"));
  ASSERT_TRUE(smaller.has_value());
  EXPECT_THAT(smaller->ranks(), ElementsAre(2));
  EXPECT_FALSE(must(comm.split({}, "")).has_value());
  const std::array others{0, 1};
  EXPECT_EQ(comm.split(others, "others").code(), Code::invalid_argument);
}

TEST(FakeComm, ends_by_abort_once) {
  Comm comm = must(Comm::open(on_backend("fake", 0, 2)));
  int aborted = 0;
  CommHooks hooks;
  hooks.aborted = [&](const Error& cause) {
    ++aborted;
    EXPECT_THAT(cause.message, HasSubstr("enough"));
  };
  comm.add_hooks(hooks);
  EXPECT_FALSE(comm.is_aborted());
  comm.abort("enough");
  comm.abort("again");
  EXPECT_EQ(aborted, 1);
  EXPECT_TRUE(comm.is_aborted());
  const auto refused = comm.barrier();
  EXPECT_EQ(refused.code(), Code::canceled);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 0 aborted"));
  EXPECT_EQ(comm.finalize().code(), Code::canceled);
}

}  // namespace
}  // namespace headrace::test
