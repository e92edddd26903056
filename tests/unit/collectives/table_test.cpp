// SPDX-License-Identifier: Apache-2.0
// A communicator whose backend is a C table: what the backend gets, and what becomes of one that is silent or
// lies.
#include "ranks.hpp"

#include <headrace/comm_backend.hpp>
#include <headrace/log.hpp>
#include <headrace/nan_check.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using SteadyClock = std::chrono::steady_clock;

/// A backend that does what a test tells it. One communicator at a time.
class Script {
 public:
  /// Registered under a name of its own.
  explicit Script(std::int32_t (*progress)(void* comm), std::size_t struct_size)
      : name_("script_" + std::to_string(number())) {
    table_.struct_size = struct_size;
    table_.abi_major = HEADRACE_COMM_ABI_MAJOR;
    table_.abi_minor = HEADRACE_COMM_ABI_MINOR;
    table_.name = name_.c_str();
    table_.version = "7";
    table_.devices = HEADRACE_COMM_MOVES_HOST_MEMORY | HEADRACE_COMM_MOVES_CUDA_MEMORY;
    table_.context = this;
    table_.open = open_it;
    table_.close = close_it;
    table_.issue = issue_it;
    table_.abort = abort_it;
    table_.progress = progress;
    table_.wait_on = wait_on_it;
    table_.group_start = group_start_it;
    table_.group_end = group_end_it;
    table_.shrink = shrink_it;
    table_.waits_for = waits_for_it;
    table_.tensor_register = tensor_register_it;
    table_.tensor_deregister = tensor_deregister_it;
    must(register_comm_backend(&table_));
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  Result<Comm> open(Timeout timeout = std::chrono::seconds(60), const std::string& device = "cpu") {
    CommOptions options;
    options.device = device;
    options.backend = name_;
    options.rank = 1;
    options.size = 3;
    options.timeout = timeout;
    options.hints = {{"speed", "high"}};
    return Comm::open(options);
  }

  void end(std::uint64_t work, std::int32_t code = HEADRACE_OK, const std::string& message = {},
           int source = -1) {
    host->end(host->context, work, code, message.data(), message.size(), source);
  }
  [[nodiscard]] std::uint64_t last_work() {
    const std::scoped_lock lock(mutex_);
    return works_.empty() ? 0 : works_.back();
  }
  /// Waits until the backend has been told to abort.
  std::string abort_reason() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !reason_.empty(); });
    return reason_;
  }
  [[nodiscard]] bool closed() {
    const std::scoped_lock lock(mutex_);
    return closed_;
  }

  const headrace_comm_host_v1* host = nullptr;
  std::function<std::int32_t(const headrace_comm_setup_v1&, void**, headrace_text_v1*)> on_open;
  std::function<std::int32_t(const headrace_comm_call_v1&, std::uint64_t, headrace_text_v1*)> on_issue =
      [](const auto&, auto, auto*) { return HEADRACE_COMM_BEGUN; };
  std::function<void()> on_abort = [] {}, on_close = [] {};
  std::function<std::int32_t()> on_progress = [] { return 0; };
  std::function<std::int32_t(std::uint64_t, void*, headrace_text_v1*)> on_wait_on = [](auto, auto, auto*) {
    return HEADRACE_OK;
  };
  std::function<void()> on_group_start = [] {};
  std::function<std::int32_t(headrace_text_v1*)> on_group_end = [](auto*) { return HEADRACE_OK; };
  std::function<std::int32_t(std::vector<int>, const headrace_comm_setup_v1&)> on_shrink;
  std::function<std::string(std::uint64_t)> on_waits_for = [](auto) { return std::string(); };
  std::function<std::int32_t(const headrace_comm_elements_v1&, std::uint64_t*, headrace_text_v1*)>
      on_register = [](const auto&, std::uint64_t* registration, auto*) {
        *registration = 1;
        return HEADRACE_OK;
      };
  std::function<std::int32_t(std::uint64_t, headrace_text_v1*)> on_deregister = [](auto, auto*) {
    return HEADRACE_OK;
  };
  std::int64_t timeout_of_registration = 0;

 private:
  static int number() {
    static std::atomic<int> count{0};
    return count.fetch_add(1);
  }
  static Script& self(void* comm) { return *static_cast<Script*>(comm); }
  static std::int32_t open_it(void* context, const headrace_comm_setup_v1* setup, void** comm,
                              headrace_text_v1* why) {
    Script& script = self(context);
    script.host = setup->host;
    *comm = context;
    return script.on_open ? script.on_open(*setup, comm, why) : HEADRACE_OK;
  }
  static void close_it(void* comm) {
    self(comm).on_close();
    const std::scoped_lock lock(self(comm).mutex_);
    self(comm).closed_ = true;
  }
  static std::int32_t issue_it(void* comm, const headrace_comm_call_v1* call, std::uint64_t work,
                               headrace_text_v1* why) {
    {
      const std::scoped_lock lock(self(comm).mutex_);
      self(comm).works_.push_back(work);
    }
    return self(comm).on_issue(*call, work, why);
  }
  static void abort_it(void* comm, const char* reason, std::size_t length) {
    {
      const std::scoped_lock lock(self(comm).mutex_);
      self(comm).reason_.assign(reason, length);
      self(comm).changed_.notify_all();
    }
    self(comm).on_abort();
  }

  static std::int32_t wait_on_it(void* comm, std::uint64_t work, void* stream, headrace_text_v1* why) {
    return self(comm).on_wait_on(work, stream, why);
  }
  static void group_start_it(void* comm) { self(comm).on_group_start(); }
  static std::int32_t group_end_it(void* comm, headrace_text_v1* why) { return self(comm).on_group_end(why); }
  static std::int32_t shrink_it(void* comm, const std::int32_t* excluded, std::uint64_t count,
                                const headrace_comm_setup_v1* setup, void** part, headrace_text_v1*) {
    *part = comm;
    return self(comm).on_shrink({excluded, excluded + count}, *setup);
  }

  static void waits_for_it(void* comm, std::uint64_t work, headrace_text_v1* why) {
    why->length = self(comm).on_waits_for(work).copy(why->data, why->capacity);
  }
  static std::int32_t tensor_register_it(void* comm, const headrace_comm_elements_v1* tensor,
                                         std::int64_t timeout_ns, std::uint64_t* registration,
                                         headrace_text_v1* why) {
    self(comm).timeout_of_registration = timeout_ns;
    return self(comm).on_register(*tensor, registration, why);
  }
  static std::int32_t tensor_deregister_it(void* comm, std::uint64_t registration, std::int64_t timeout_ns,
                                           headrace_text_v1* why) {
    self(comm).timeout_of_registration = timeout_ns;
    return self(comm).on_deregister(registration, why);
  }

  const std::string name_;
  headrace_comm_backend_v1 table_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> works_;
  std::string reason_;
  bool closed_ = false;
};

std::int32_t progress_it(void* comm) { return static_cast<Script*>(comm)->on_progress(); }

/// Registered backends stay, so scripts do too.
Script& new_script(std::int32_t (*progress)(void* comm) = nullptr,
                   std::size_t struct_size = sizeof(headrace_comm_backend_v1)) {
  static auto& all = *new std::vector<std::unique_ptr<Script>>;
  all.push_back(std::make_unique<Script>(progress, struct_size));
  return *all.back();
}

OpOptions asynchronous(std::shared_ptr<const void> owner = {}) {
  OpOptions options;
  options.async = true;
  options.owner = std::move(owner);
  return options;
}

std::int32_t write(headrace_text_v1* why, std::int32_t code, const std::string& text) {
  why->length = text.copy(why->data, why->capacity);
  return code;
}

TEST(TableComm, opens_with_what_the_caller_gave) {
  Script& script = new_script();
  script.on_open = [&](const headrace_comm_setup_v1& setup, void**, headrace_text_v1*) {
    EXPECT_EQ(setup.struct_size, sizeof setup);
    EXPECT_EQ(setup.rank, 1);
    EXPECT_EQ(setup.size, 3);
    EXPECT_EQ(setup.device, HEADRACE_COMM_CPU);
    EXPECT_STREQ(setup.name, "world");
    EXPECT_EQ(setup.ranks[2], 2);
    EXPECT_EQ(setup.timeout_ns, 60'000'000'000);
    EXPECT_EQ(setup.meeting_timeout_ns, 120'000'000'000);
    EXPECT_EQ(setup.hint_count, 1U);
    EXPECT_STREQ(setup.hints[0].name, "speed");
    EXPECT_STREQ(setup.hints[0].value, "high");
    return HEADRACE_OK;
  };
  Comm comm = must(script.open());
  EXPECT_EQ(comm.backend(), script.name());
  EXPECT_EQ(comm.backend_version(), "7");
  EXPECT_EQ(comm.set_hints({{"speed", "low"}}).code(), Code::not_supported);
  EXPECT_EQ(comm.split(std::array{1}, "part").code(), Code::not_supported);
  comm.close();
  EXPECT_TRUE(script.closed());
}

TEST(TableComm, mirrors_every_field_of_a_call) {
  Script& script = new_script();
  std::vector<float> input{1, 2, 3, 4, 5, 6}, output(9);
  const std::array<std::size_t, 3> in{1, 2, 3}, out{4, 2, 3};
  script.on_issue = [&](const headrace_comm_call_v1& call, std::uint64_t work, headrace_text_v1*) {
    EXPECT_EQ(call.struct_size, sizeof call);
    EXPECT_EQ(call.operation, HEADRACE_COMM_ALL_TO_ALL_V_SINGLE);
    EXPECT_EQ(call.async, 1);
    EXPECT_EQ(call.number, 1U);
    EXPECT_NE(work, 0U);
    EXPECT_EQ(call.input_count, 1U);
    EXPECT_EQ(call.inputs[0].data, input.data());
    EXPECT_EQ(call.inputs[0].count, 6U);
    EXPECT_EQ(call.inputs[0].dtype, HEADRACE_FLOAT32);
    EXPECT_EQ(call.outputs[0].data, output.data());
    EXPECT_EQ(call.split_count, 3U);
    EXPECT_THAT(std::vector(call.input_splits, call.input_splits + 3), ElementsAre(1, 2, 3));
    EXPECT_THAT(std::vector(call.output_splits, call.output_splits + 3), ElementsAre(4, 2, 3));
    EXPECT_EQ(call.peer, -1);
    EXPECT_EQ(call.timeout_ns, 5'000'000'000);
    EXPECT_EQ(call.hint_count, 1U);
    EXPECT_STREQ(call.hints[0].name, "way");
    return HEADRACE_COMM_DONE;
  };
  Comm comm = must(script.open());
  OpOptions options = asynchronous();
  options.timeout = std::chrono::seconds(5);
  options.hints = {{"way", "short"}};
  const Work work = must(comm.all_to_all_v_single(output, input, out, in, options));
  EXPECT_EQ(work.status(), WorkStatus::completed);
  script.on_issue = [&](const headrace_comm_call_v1& call, std::uint64_t work_id, headrace_text_v1*) {
    EXPECT_EQ(call.number, 1U);  // messages have numbers of their own
    EXPECT_EQ(call.tag, 9U);
    EXPECT_EQ(call.peer, -1);
    EXPECT_EQ(call.timeout_ns, 60'000'000'000);
    script.end(work_id, HEADRACE_OK, {}, 2);
    return HEADRACE_COMM_BEGUN;
  };
  MessageOptions tagged;
  tagged.tag = 9;
  EXPECT_EQ(must(comm.recv(output, any_source, tagged)).source(), 2);
  script.on_issue = [&](const headrace_comm_call_v1& call, std::uint64_t, headrace_text_v1*) {
    EXPECT_EQ(call.operation, HEADRACE_COMM_REDUCE);
    EXPECT_EQ(call.reduction, HEADRACE_COMM_PREMUL_SUM);
    EXPECT_EQ(call.factor, 0.5);
    EXPECT_EQ(call.peer, 2);
    EXPECT_EQ(call.number, 2U);
    return HEADRACE_COMM_DONE;
  };
  ok(comm.reduce(input, 2, {ReduceOp::premul_sum, 0.5}));
  const std::vector<std::int64_t> splits(3);
  script.on_issue = [&](const headrace_comm_call_v1& call, std::uint64_t, headrace_text_v1*) {
    EXPECT_EQ(call.operation, HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE);
    EXPECT_EQ(call.input_count, 3U);
    EXPECT_EQ(call.inputs[0].data, input.data());
    EXPECT_EQ(call.inputs[1].data, splits.data());
    EXPECT_EQ(call.inputs[2].dtype, HEADRACE_INT64);
    EXPECT_EQ(call.split_count, 0U);
    return HEADRACE_COMM_DONE;
  };
  ok(comm.device_all_to_all_v_single(output, input, splits, splits));
}

TEST(TableComm, ends_a_work_when_the_backend_does_and_releases_its_owner) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<std::string> told;
  CommHooks hooks;
  hooks.scheduled = [&](const CommCall& call) { told.push_back("scheduled " + std::to_string(call.number)); };
  hooks.started = [&](const CommCallId& call) { told.push_back("started " + std::to_string(call.number)); };
  hooks.completed = [&](const CommCallId& call, const Error& error) {
    told.push_back("completed " + std::to_string(call.number) + " " + std::string(code_name(error.code)));
  };
  comm.add_hooks(hooks);
  auto owner = std::make_shared<int>();
  std::vector<int> numbers{1};
  const Work work = must(comm.all_reduce(numbers, ReduceOp::sum, asynchronous(owner)));
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  EXPECT_EQ(work.wait(milliseconds(1)).code(), Code::timed_out);
  EXPECT_EQ(owner.use_count(), 2);
  std::jthread ending([&] { script.end(script.last_work()); });
  must(work.wait());
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_THAT(told, ElementsAre("scheduled 1", "started 1", "completed 1 ok"));
}

/// Streams of a GPU, of which nothing is used but the addresses.
char stream_memory[3];
void* const stream_a = &stream_memory[0];
void* const stream_b = &stream_memory[1];

TEST(TableCommOnGpu, gives_the_backend_the_device_and_the_stream_of_each_call) {
  Script& script = new_script();
  script.on_open = [](const headrace_comm_setup_v1& setup, void**, headrace_text_v1*) {
    EXPECT_EQ(setup.device, 2);
    return HEADRACE_OK;
  };
  Comm comm = must(script.open({}, "cuda:2"));
  std::vector<std::pair<int, void*>> seen;
  script.on_issue = [&](const headrace_comm_call_v1& call, auto, auto*) {
    seen.emplace_back(call.operation, call.stream);
    return HEADRACE_COMM_DONE;
  };
  OpOptions on_a;
  on_a.stream = stream_a;
  ok(comm.barrier(on_a));
  ok(comm.barrier());
  MessageOptions on_b;
  on_b.stream = stream_b;
  std::vector<int> numbers{1};
  ok(comm.send(numbers, 0, on_b));
  Batch batch = comm.batch();
  must(batch.send(numbers, 2));
  ok(batch.issue(on_a));
  EXPECT_THAT(
      seen, ElementsAre(std::pair(HEADRACE_COMM_BARRIER, stream_a), std::pair(HEADRACE_COMM_BARRIER, nullptr),
                        std::pair(HEADRACE_COMM_SEND, stream_b), std::pair(HEADRACE_COMM_SEND, stream_a)));
}

TEST(TableCommOnGpu, returns_from_calls_once_they_are_queued_and_waits_on_the_host_when_asked) {
  Script& script = new_script();
  Comm comm = must(script.open({}, "cuda:2"));
  const Work work = must(comm.barrier());  // not asynchronous
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  EXPECT_EQ(work.wait(milliseconds(1)).code(), Code::timed_out);
  script.end(script.last_work());
  must(work.wait());
}

TEST(TableCommOnGpu, lets_a_stream_wait_for_a_work) {
  Script& script = new_script();
  Comm comm = must(script.open({}, "cuda:2"));
  std::vector<std::pair<std::uint64_t, void*>> waits;
  script.on_wait_on = [&](std::uint64_t work, void* stream, headrace_text_v1*) {
    waits.emplace_back(work, stream);
    return HEADRACE_OK;
  };
  const Work work = must(comm.barrier(asynchronous()));
  must(work.wait_on(stream_b));
  EXPECT_THAT(waits, ElementsAre(std::pair(script.last_work(), stream_b)));
  script.end(script.last_work());
  must(work.wait_on(stream_b));
  EXPECT_EQ(waits.size(), 1U);  // it has ended
  script.on_wait_on = [](auto, auto, headrace_text_v1* why) {
    return write(why, HEADRACE_INVALID_ARGUMENT, "a stream of another GPU");
  };
  const auto refused = must(comm.barrier(asynchronous())).wait_on(stream_a);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("barrier number 2 of \"world\": backend"));
  const Work failed = must(comm.barrier(asynchronous()));
  script.end(script.last_work(), HEADRACE_PEER_LOST, "rank 2 is gone");
  EXPECT_EQ(failed.wait_on(stream_a).code(), Code::peer_lost);
}

TEST(TableCommOnGpu, logs_a_failure_behind_which_streams_go_on) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view, std::string_view text) {
    const std::scoped_lock lock(mutex);
    if (level == LogLevel::error) lines.emplace_back(text);
  });
  for (const char* const device : {"cpu", "cuda:2"}) {
    Script& script = new_script();
    Comm comm = must(script.open({}, device));
    const Work work = must(comm.barrier(asynchronous()));
    script.end(script.last_work(), HEADRACE_PEER_LOST, "rank 2 is gone");
    EXPECT_EQ(work.wait().code(), Code::peer_lost);
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1U);  // a caller on the CPU has the error from its call
  EXPECT_THAT(lines.front(),
              testing::AllOf(HasSubstr("barrier number 1 of \"world\""), HasSubstr("rank 2 is gone"),
                             HasSubstr("its outputs are undefined, and streams go on with them")));
}

TEST(TableCommOnGpu, lets_a_stream_wait_for_every_call_of_a_group) {
  Script& script = new_script();
  Comm comm = must(script.open({}, "cuda:2"));
  std::vector<std::string> told;
  script.on_group_start = [&] { told.emplace_back("start"); };
  script.on_issue = [&](const headrace_comm_call_v1& call, auto, auto*) {
    told.emplace_back(call.async != 0 ? "async" : "issue");
    return HEADRACE_COMM_BEGUN;
  };
  script.on_group_end = [&](headrace_text_v1*) {
    told.emplace_back("end");
    return HEADRACE_OK;
  };
  std::vector<std::uint64_t> waits;
  script.on_wait_on = [&](std::uint64_t work, void*, headrace_text_v1*) {
    waits.push_back(work);
    return HEADRACE_OK;
  };
  std::vector<int> numbers{1}, others{1};
  Batch batch = comm.batch();
  must(batch.send(numbers, 2));
  must(batch.recv(others, 2));
  const Work work = must(batch.issue());
  EXPECT_THAT(told, ElementsAre("start", "issue", "issue", "end"));
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  must(work.wait_on(stream_a));
  EXPECT_THAT(waits, ElementsAre(script.last_work() - 1, script.last_work()));
  script.end(script.last_work() - 1);
  script.end(script.last_work());
  must(work.wait());
}

TEST(TableComm, ends_a_group_with_the_error_of_its_end) {
  Script& script = new_script();
  Comm comm = must(script.open());
  script.on_group_end = [](headrace_text_v1* why) {
    return write(why, HEADRACE_BACKEND_FAILED, "the network is down");
  };
  std::vector<int> numbers{1};
  Batch batch = comm.batch();
  must(batch.send(numbers, 2));
  const auto ended = batch.issue();
  EXPECT_EQ(ended.code(), Code::backend_failed);
  EXPECT_THAT(ended.error().message, HasSubstr("send number 1 of batch number 1 of \"world\""));
  EXPECT_TRUE(comm.is_aborted());
}

TEST(TableComm, refuses_streams_of_a_communicator_on_the_host) {
  Script& script = new_script();
  Comm comm = must(script.open());
  OpOptions options = asynchronous();
  const Work work = must(comm.barrier(options));
  EXPECT_EQ(work.wait_on(stream_a).code(), Code::invalid_argument);
  options.stream = stream_a;
  const auto refused = comm.barrier(options);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("the communicator moves host memory: give none"));
  EXPECT_EQ(comm.batch().issue(options).code(), Code::invalid_argument);
}

TEST(TableCommOnGpu, has_no_nan_check) {
  Script& script = new_script();
  Comm comm = must(script.open({}, "cuda:2"));
  comm.add_hooks(nan_check(comm));
  script.on_issue = [](const auto&, auto, auto*) { return HEADRACE_COMM_DONE; };
  const Elements gpu_memory(stream_a, 1'000'000, DType::float32);  // reading it would end the process
  ok(comm.all_reduce(gpu_memory, ReduceOp::sum));
}

TEST(TableComm, shrinks_by_the_backend_and_ends) {
  Script& script = new_script();
  Comm comm = must(script.open());
  const Work work = must(comm.barrier(asynchronous()));
  std::vector<int> excluded;
  script.on_shrink = [&](std::vector<int> ranks, const headrace_comm_setup_v1& setup) {
    excluded = std::move(ranks);
    EXPECT_EQ(setup.rank, 0);
    EXPECT_EQ(setup.size, 2);
    EXPECT_EQ(setup.ranks[0], 1);
    return HEADRACE_OK;
  };
  Comm left = must(comm.shrink(std::array{0}));
  EXPECT_THAT(excluded, ElementsAre(0));
  EXPECT_THAT(left.ranks(), ElementsAre(1, 2));
  EXPECT_EQ(work.wait().code(), Code::canceled);
  EXPECT_THAT(comm.barrier().error().message, HasSubstr("it goes on with ranks 1, 2 alone"));
  EXPECT_THAT(left.shrink(std::array{0}).error().message, HasSubstr("rank 0 cannot be left out"));
}

TEST(TableComm, ignores_ends_of_works_that_are_not_under_way) {
  Script& script = new_script();
  Comm comm = must(script.open());
  script.end(77);
  script.end(0, 99);
  const Work work = must(comm.barrier(asynchronous()));
  script.end(script.last_work());
  script.end(script.last_work(), HEADRACE_INTERNAL, "again");
  must(work.wait());
  EXPECT_FALSE(comm.is_aborted());
  script.on_issue = [&](const auto&, std::uint64_t id, auto*) {
    script.end(id);
    return HEADRACE_COMM_DONE;  // said twice
  };
  ok(comm.barrier());
}

TEST(TableComm, ends_by_an_error_of_the_backend_and_tells_it_to_abort) {
  Script& script = new_script();
  Comm comm = must(script.open());
  const Work other = must(comm.barrier(asynchronous()));
  const Work work = must(comm.barrier(asynchronous()));
  script.end(script.last_work(), HEADRACE_PEER_LOST, "rank 2 is gone");
  EXPECT_EQ(work.wait().code(), Code::peer_lost);
  EXPECT_THAT(work.error().message, HasSubstr("rank 1, barrier number 2 of \"world\": backend " +
                                              script.name() + ": rank 2 is gone"));
  EXPECT_THAT(script.abort_reason(), HasSubstr("rank 2 is gone"));
  EXPECT_THAT(other.wait().error().message, HasSubstr("rank 2 is gone"));
  EXPECT_TRUE(comm.is_aborted());
  EXPECT_THAT(comm.barrier().error().message, HasSubstr("rank 2 is gone"));
}

TEST(TableComm, gives_codes_and_sentences_to_errors_that_have_none) {
  const std::pair<std::int32_t, std::pair<Code, std::string>> cases[] = {
      {HEADRACE_EXHAUSTED, {Code::exhausted, "gave no reason but exhausted"}},
      {77, {Code::backend_failed, "returned 77, which is no code"}},
      {-3, {Code::backend_failed, "returned -3, which is no code"}},
      {HEADRACE_WOULD_BLOCK, {Code::backend_failed, "returned 1, which is no code"}}};
  for (const auto& [code, expected] : cases) {
    Script& script = new_script();
    script.on_open = [code = code](const auto&, void**, auto*) { return code; };
    const auto opened = script.open();
    EXPECT_EQ(opened.code(), expected.first);
    EXPECT_THAT(opened.error().message, HasSubstr(expected.second));
    script.on_open = {};
    script.on_issue = [code = code](const auto&, std::uint64_t, auto*) { return code; };
    Comm comm = must(script.open());
    EXPECT_THAT(comm.barrier().error().message, HasSubstr(expected.second));
  }
}

TEST(TableComm, does_not_open_without_a_handle_or_with_an_error) {
  Script& script = new_script();
  script.on_open = [](const auto&, void** comm, auto*) {
    *comm = nullptr;
    return HEADRACE_OK;
  };
  EXPECT_THAT(script.open().error().message, HasSubstr("opened and gave no handle"));
  script.on_open = [](const auto&, void**, headrace_text_v1* why) {
    return write(why, HEADRACE_NOT_SUPPORTED, "no device 3 here");
  };
  const auto opened = script.open();
  EXPECT_EQ(opened.code(), Code::not_supported);
  EXPECT_THAT(opened.error().message, HasSubstr("backend " + script.name() + ": no device 3 here"));
  EXPECT_FALSE(script.closed());
}

TEST(TableComm, gives_the_number_of_a_refused_call_to_the_next) {
  Script& script = new_script();
  script.on_issue = [](const headrace_comm_call_v1& call, std::uint64_t,
                       headrace_text_v1* why) -> std::int32_t {
    EXPECT_EQ(call.number, 1U);
    if (call.hint_count > 0) return write(why, HEADRACE_INVALID_ARGUMENT, "no hint speed");
    return HEADRACE_COMM_DONE;
  };
  Comm comm = must(script.open());
  OpOptions options;
  options.hints = {{"speed", "1"}};
  const auto refused = comm.barrier(options);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("no hint speed"));
  EXPECT_FALSE(comm.is_aborted());
  ok(comm.barrier());
}

TEST(TableComm, ends_a_late_work_and_keeps_its_owner_until_the_backend_has_ended_it) {
  Script& script = new_script();
  Comm comm = must(script.open());
  auto owner = std::make_shared<int>();
  OpOptions options = asynchronous(owner);
  options.timeout = milliseconds(20);
  const Work work = must(comm.barrier(options));
  const auto ended = work.wait();
  EXPECT_EQ(ended.code(), Code::timed_out);
  EXPECT_EQ(work.status(), WorkStatus::timed_out);
  EXPECT_THAT(ended.error().message, HasSubstr("has not ended it within 20 ms"));
  EXPECT_THAT(script.abort_reason(), HasSubstr("within 20 ms"));
  EXPECT_TRUE(comm.is_aborted());
  EXPECT_EQ(owner.use_count(), 3);  // the options have it too
  script.end(script.last_work(), HEADRACE_INTERNAL, "late");
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ(work.status(), WorkStatus::timed_out);
}

TEST(TableComm, says_what_a_late_work_waits_for) {
  Script& script = new_script();
  Comm comm = must(script.open());
  OpOptions options = asynchronous();
  options.timeout = milliseconds(20);
  script.on_waits_for = [&](std::uint64_t work) {
    EXPECT_EQ(work, script.last_work());
    return std::string("rank 2 has not come");
  };
  const Work work = must(comm.barrier(options));
  EXPECT_EQ(work.wait().code(), Code::timed_out);
  EXPECT_THAT(work.error().message, HasSubstr("has not ended it within 20 ms: rank 2 has not come"));
  EXPECT_THAT(script.abort_reason(), HasSubstr("rank 2 has not come"));
}

TEST(TableComm, ends_a_late_work_that_nobody_waits_for) {
  Script& script = new_script();
  Comm comm = must(script.open());
  OpOptions options = asynchronous();
  options.timeout = milliseconds(20);
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  must(comm.barrier(options)).on_end([&] {
    const std::scoped_lock lock(mutex);
    ended = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended; });
}

TEST(TableComm, ends_all_works_by_abort_though_the_backend_never_answers) {
  Script& script = new_script();
  Comm comm = must(script.open());
  auto owner = std::make_shared<int>();
  const Work work = must(comm.barrier(asynchronous(owner)));
  std::jthread waiting([&] { EXPECT_EQ(comm.barrier().code(), Code::canceled); });
  const std::uint64_t first = script.last_work();
  while (script.last_work() < 2) std::this_thread::yield();
  EXPECT_GE(first, 1U);
  const auto begin = SteadyClock::now();
  comm.abort("enough");
  const auto ended = work.wait();
  waiting.join();
  EXPECT_LT(SteadyClock::now() - begin, std::chrono::seconds(20));  // 50 ms, and what a busy machine adds
  EXPECT_EQ(ended.code(), Code::canceled);
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1 aborted \"world\": enough"));
  EXPECT_THAT(script.abort_reason(), HasSubstr("enough"));
  EXPECT_EQ(owner.use_count(), 2);
  script.on_close = [&] { EXPECT_EQ(owner.use_count(), 2); };  // the backend may use the memory until here
  comm.close();
  EXPECT_EQ(owner.use_count(), 1);
  script.end(script.last_work());  // breaks its word
  script.host->ended(script.host->context, HEADRACE_INTERNAL, nullptr, 0);
}

TEST(TableComm, refuses_calls_from_inside_its_backend) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<Error> refused;
  script.on_issue = [&](const auto&, auto, auto*) {
    refused = {comm.barrier().error(), comm.send({nullptr, 0, DType::uint8}, 0).error(),
               comm.tensor_register({nullptr, 0, DType::uint8}).error(), comm.finalize().error()};
    return HEADRACE_COMM_DONE;
  };
  ok(comm.barrier());
  ASSERT_EQ(refused.size(), 4U);
  for (const Error& error : refused) {
    EXPECT_EQ(error.code, Code::invalid_argument);
    EXPECT_THAT(error.message, HasSubstr("calls the communicator that it serves"));
  }
}

TEST(TableComm, may_be_let_go_by_a_hook_on_its_own_thread) {
  Script& script = new_script();
  std::optional<Comm> comm = must(script.open());
  std::promise<void> returned;
  CommHooks hooks;
  hooks.completed = [&](const CommCallId&, const Error&) {
    returned.get_future().wait();
    comm.reset();
  };
  comm->add_hooks(std::move(hooks));
  OpOptions options = asynchronous();
  options.timeout = milliseconds(20);
  const Work work = must(comm->barrier(options));
  returned.set_value();
  while (!script.closed()) std::this_thread::yield();
  EXPECT_EQ(work.wait().code(), Code::timed_out);
}

TEST(TableComm, may_be_let_go_by_a_hook_while_its_backend_ends_a_work) {
  Script& script = new_script();
  std::mutex of_the_backend;  // which it holds while it calls the host, and takes to close
  script.on_close = [&] { const std::scoped_lock lock(of_the_backend); };
  std::optional<Comm> comm = must(script.open());
  CommHooks hooks;
  hooks.completed = [&](const CommCallId&, const Error&) { comm.reset(); };
  // The thread that watches goes on meanwhile.
  hooks.aborted = [](const Error&) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  comm->add_hooks(std::move(hooks));
  const Work work = must(comm->barrier(asynchronous()));
  {
    const std::scoped_lock lock(of_the_backend);
    script.end(script.last_work());
  }
  must(work.wait());
  while (!script.closed()) std::this_thread::yield();
}

TEST(TableComm, waits_do_not_hang_on_an_abort_that_blocks) {
  Script& script = new_script();
  std::mutex blocked;
  blocked.lock();
  Comm comm = must(script.open());
  script.on_abort = [&] {
    blocked.lock();
    blocked.unlock();
  };
  const Work work = must(comm.barrier(asynchronous()));
  comm.abort("enough");
  EXPECT_EQ(work.wait().code(), Code::canceled);
  blocked.unlock();
}

TEST(TableComm, hears_that_another_rank_has_ended_it) {
  Script& script = new_script();
  Comm comm = must(script.open());
  int aborted = 0;
  CommHooks hooks;
  hooks.aborted = [&](const Error&) { ++aborted; };
  comm.add_hooks(hooks);
  const std::string why = "rank 2 aborted it";
  for (int i = 0; i < 2; ++i)
    script.host->ended(script.host->context, HEADRACE_CANCELED, why.data(), why.size());
  EXPECT_TRUE(comm.is_aborted());
  EXPECT_EQ(aborted, 1);
  EXPECT_THAT(comm.barrier().error().message, HasSubstr(why));
  EXPECT_THAT(comm.finalize().error().message, HasSubstr(why));
  EXPECT_TRUE(script.closed());
}

TEST(TableComm, has_its_store_only_while_it_opens) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::array<char, 256> buffer{};
  headrace_text_v1 why{sizeof why, buffer.data(), buffer.size(), 0};
  EXPECT_EQ(script.host->set(script.host->context, "key", "1", 1, &why), HEADRACE_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(buffer.data(), why.length), HasSubstr("only while the communicator opens"));
  EXPECT_EQ(script.host->get(script.host->context, nullptr, nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
  script.on_open = [&](const headrace_comm_setup_v1& setup, void**, headrace_text_v1* text) {
    return setup.host->set(setup.host->context, "key", "1", 1, text);
  };
  EXPECT_THAT(script.open().error().message, HasSubstr("needs a place where the ranks meet"));
}

TEST(TableComm, finalizes_once_all_works_have_ended) {
  Script& script = new_script();
  Comm comm = must(script.open());
  const Work work = must(comm.barrier(asynchronous()));
  std::jthread ending([&] {
    EXPECT_FALSE(script.closed());
    script.end(script.last_work());
  });
  must(comm.finalize());
  EXPECT_EQ(work.status(), WorkStatus::completed);
  EXPECT_TRUE(script.closed());
  EXPECT_EQ(comm.barrier().code(), Code::invalid_argument);
  must(comm.finalize());
}

TEST(TableComm, lets_threads_that_wait_make_progress) {
  Script& script = new_script(progress_it);
  int steps = 0;
  script.on_progress = [&] {  // never two at once, so it needs no lock
    if (++steps < 5) return 1;
    script.end(script.last_work());
    return 0;
  };
  Comm comm = must(script.open());
  ok(comm.barrier());
  EXPECT_GE(steps, 5);
  const Work work = must(comm.barrier(asynchronous()));
  must(work.wait());
}

// --- memory that calls use again and again

TEST(RegisteredTensors, are_told_to_the_backend_in_the_order_of_collectives) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<std::string> told;
  CommHooks hooks;
  hooks.scheduled = [&](const CommCall& call) {
    told.push_back(std::string(comm_operation_name(call.operation)) + " " + std::to_string(call.number));
  };
  hooks.completed = [&](const CommCallId& call, const Error& error) {
    told.push_back("completed " + std::to_string(call.number) + " " + std::string(code_name(error.code)));
  };
  comm.add_hooks(hooks);
  std::vector<double> memory(3);
  script.on_issue = [](const auto&, auto, auto*) { return HEADRACE_COMM_DONE; };
  script.on_register = [&](const headrace_comm_elements_v1& tensor, std::uint64_t* registration, auto*) {
    EXPECT_EQ(tensor.data, memory.data());
    EXPECT_EQ(tensor.count, 3U);
    EXPECT_EQ(tensor.dtype, HEADRACE_FLOAT64);
    told.emplace_back("registered");
    *registration = 77;
    return HEADRACE_OK;
  };
  script.on_deregister = [&](std::uint64_t registration, auto*) {
    EXPECT_EQ(registration, 77U);
    told.emplace_back("deregistered");
    return HEADRACE_OK;
  };
  ok(comm.barrier());
  must(comm.tensor_register(memory));
  EXPECT_GT(script.timeout_of_registration, 0);
  EXPECT_LE(script.timeout_of_registration, 60'000'000'000);
  ok(comm.barrier());
  comm.set_timeout(forever);
  must(comm.tensor_deregister(memory));
  EXPECT_EQ(script.timeout_of_registration, -1);
  EXPECT_THAT(told, ElementsAre("barrier 1", "completed 1 ok", "tensor_register 2", "registered",
                                "completed 2 ok", "barrier 3", "completed 3 ok", "tensor_deregister 4",
                                "deregistered", "completed 4 ok"));
}

TEST(RegisteredTensors, wait_for_the_collectives_of_this_rank_and_for_no_message) {
  Script& script = new_script(progress_it);
  std::atomic<std::uint64_t> barrier{0};
  script.on_progress = [&, registering = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != registering) return 0;
    if (const std::uint64_t ends = barrier.exchange(0); ends != 0) script.end(ends);
    return 0;
  };
  Comm comm = must(script.open());
  std::vector<int> memory(1), message(1);
  MessageOptions later;
  later.async = true;
  const Work received = must(comm.recv(message, 0, later));
  const Work work = must(comm.barrier(asynchronous()));
  barrier = script.last_work();
  script.on_register = [&](const auto&, std::uint64_t* registration, auto*) {
    EXPECT_EQ(work.status(), WorkStatus::completed);
    EXPECT_EQ(received.status(), WorkStatus::in_progress);
    *registration = 1;
    return HEADRACE_OK;
  };
  must(comm.tensor_register(memory));
  EXPECT_EQ(work.status(), WorkStatus::completed);
}

TEST(RegisteredTensors, end_the_communicator_if_a_collective_of_this_rank_does_not_end) {
  Script& script = new_script();
  Comm comm = must(script.open(milliseconds(20)));
  OpOptions options = asynchronous();
  options.timeout = std::chrono::seconds(600);
  const Work work = must(comm.barrier(options));
  std::vector<int> memory(1);
  const auto late = comm.tensor_register(memory);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message,
              HasSubstr("rank 1, tensor_register of \"world\": barrier number 1 of this "
                        "rank is under way after 20 ms"));
  EXPECT_TRUE(comm.is_aborted());
  EXPECT_THAT(script.abort_reason(), HasSubstr("tensor_register"));
  EXPECT_EQ(work.wait().code(), Code::timed_out);
}

TEST(RegisteredTensors, keep_their_owners_until_they_are_taken_back) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<int> one(4), other(4);
  auto owner = std::make_shared<int>();
  must(comm.tensor_register(one, owner));
  must(comm.tensor_register(other, owner));
  EXPECT_EQ(owner.use_count(), 3);
  script.on_deregister = [](auto, headrace_text_v1* why) {
    return write(why, HEADRACE_TIMED_OUT, "rank 2 has not come");
  };
  const auto late = comm.tensor_deregister(one);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message, HasSubstr("rank 1, tensor_deregister number 3 of \"world\""));
  EXPECT_THAT(late.error().message, HasSubstr("rank 2 has not come"));
  EXPECT_EQ(owner.use_count(), 3);
  EXPECT_FALSE(comm.is_aborted());
  script.on_deregister = [](auto, auto*) { return HEADRACE_OK; };
  must(comm.tensor_deregister(one));
  EXPECT_EQ(owner.use_count(), 2);
  script.on_close = [&] { EXPECT_EQ(owner.use_count(), 2); };
  comm.close();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(RegisteredTensors, are_not_registered_after_an_error_of_the_backend) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<int> memory(4);
  auto owner = std::make_shared<int>();
  script.on_register = [](const auto&, auto*, headrace_text_v1* why) {
    return write(why, HEADRACE_NOT_SUPPORTED, "rank 2 gave memory that GPU 0 cannot map");
  };
  const auto refused = comm.tensor_register(memory, owner);
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 2 gave memory that GPU 0 cannot map"));
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_FALSE(comm.is_aborted());
  EXPECT_THAT(comm.tensor_deregister(memory).error().message, HasSubstr("is registered; 0 tensors are"));
  script.on_register = [](const auto&, auto*, auto*) { return HEADRACE_OK; };
  EXPECT_THAT(comm.tensor_register(memory).error().message, HasSubstr("gave no number"));
}

TEST(RegisteredTensors, that_are_wrong_never_reach_the_backend) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<int> memory(4);
  must(comm.tensor_register(memory));
  int told = 0;
  script.on_register = [&](const auto&, auto*, auto*) { return ++told; };
  script.on_deregister = [&](auto, auto*) { return ++told; };
  const auto again = comm.tensor_register({memory.data(), 2, DType::int32});
  EXPECT_EQ(again.code(), Code::invalid_argument);
  EXPECT_THAT(again.error().message, HasSubstr("is registered already: call tensor_deregister first"));
  EXPECT_THAT(comm.tensor_register({nullptr, 4, DType::int32}).error().message, HasSubstr("a null address"));
  EXPECT_THAT(comm.tensor_deregister({memory.data() + 1, 3, DType::int32}).error().message,
              HasSubstr("is registered; 1 tensors are"));
  must(comm.start_coalescing());
  EXPECT_THAT(comm.tensor_register({memory.data() + 1, 3, DType::int32}).error().message,
              HasSubstr("call end_coalescing first"));
  must(comm.cancel_coalescing());
  EXPECT_EQ(told, 0);
  script.on_issue = [](const headrace_comm_call_v1& call, auto, auto*) {
    EXPECT_EQ(call.number, 2U);  // none of these calls has a number
    return HEADRACE_COMM_DONE;
  };
  ok(comm.barrier());
}

TEST(RegisteredTensors, of_a_table_of_version_1_0_do_nothing) {
  Script& script = new_script(nullptr, HEADRACE_COMM_BACKEND_V1_SIZE);
  script.on_register = [](const auto&, auto*, auto*) -> std::int32_t {
    ADD_FAILURE() << "the entry lies behind the table";
    return HEADRACE_INTERNAL;
  };
  Comm comm = must(script.open());
  std::vector<int> memory(4);
  auto owner = std::make_shared<int>();
  must(comm.tensor_register(memory, owner));
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_THAT(comm.tensor_register(memory).error().message, HasSubstr("registered already"));
  must(comm.tensor_deregister(memory));
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(RegisteredTensors, an_abort_ends_the_wait_for_other_ranks) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::promise<void> inside;
  script.on_register = [&](const auto&, auto*, headrace_text_v1* why) {
    inside.set_value();
    return write(why, HEADRACE_CANCELED, script.abort_reason());
  };
  std::vector<int> memory(4);
  std::jthread aborting([&] {
    inside.get_future().wait();
    comm.abort("enough");
  });
  const auto ended = comm.tensor_register(memory);
  EXPECT_EQ(ended.code(), Code::canceled);
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1 aborted \"world\": enough"));
}

TEST(RegisteredTensors, stay_with_their_owners_from_an_abort_to_the_close) {
  Script& script = new_script();
  Comm comm = must(script.open());
  std::vector<int> memory(4);
  auto owner = std::make_shared<int>();
  must(comm.tensor_register(memory, owner));
  comm.abort("enough");
  EXPECT_THAT(comm.tensor_deregister(memory).error().message, HasSubstr("enough"));
  EXPECT_THAT(comm.tensor_register(memory).error().message, HasSubstr("enough"));
  EXPECT_EQ(owner.use_count(), 2);
  comm.close();
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(comm.tensor_register(memory).code(), Code::invalid_argument);
}

TEST(TableComm, an_interrupted_wait_ends_it) {
  Script& script = new_script();
  CommOptions options;
  options.backend = script.name();
  options.interrupted = [] { return true; };
  Comm comm = must(Comm::open(options));
  const auto ended = comm.barrier();
  EXPECT_EQ(ended.code(), Code::canceled);
  EXPECT_THAT(ended.error().message, HasSubstr("its caller interrupted it"));
  EXPECT_TRUE(comm.is_aborted());
}

}  // namespace
}  // namespace headrace::test
