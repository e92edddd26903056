// SPDX-License-Identifier: Apache-2.0
// What the options of the environment add to communicators.
#include "collectives/observers.hpp"
#include "ranks.hpp"

#include "support/temporary_folder.hpp"

#include <headrace/agent.hpp>
#include <headrace/flight_recorder.hpp>

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

namespace headrace::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TraceVariable {
 public:
  TraceVariable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~TraceVariable() { ::unsetenv(name_); }
  TraceVariable(const TraceVariable&) = delete;
  TraceVariable& operator=(const TraceVariable&) = delete;

 private:
  const char* name_;
};

/// A process has one recorder for each rank, and the first communicator decides what it keeps: a test runs in
/// a process of its own.
class CommObservers : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "fast"); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const TemporaryFolder folder_;
};

/// Ends the process with 0 if no expectation failed.
[[noreturn]] void leave() { std::exit(testing::Test::HasFailure() ? 1 : 0); }

// GoogleTest runs suites of this name first: a child that starts threads needs a parent without any.
using CommObserversDeathTest = CommObservers;

TEST_F(CommObserversDeathTest, record_each_communicator_of_a_rank_if_trace_is_set) {
  const auto run = [] {
    const TraceVariable trace("HEADRACE_COMM_TRACE", "5");
    with_ranks(2, [](Comm& comm) {
      auto part = must(comm.split(std::vector<int>{0, 1}, "part"));
      for (int i = 0; i < 9; ++i) ok(part->barrier());
      const std::string dump = FlightRecorder::of_environment(comm.rank()).value().dump();
      EXPECT_THAT(dump, HasSubstr("\"rank\":" + std::to_string(comm.rank())));
      EXPECT_THAT(dump, HasSubstr("\"record_id\":9,"));
      EXPECT_THAT(dump, testing::Not(HasSubstr("\"record_id\":4,")));
    });
    EXPECT_FALSE(FlightRecorder::of_environment(7).has_value());
    leave();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(CommObserversDeathTest, write_the_last_calls_of_each_rank_when_a_communicator_fails) {
  const std::string prefix = path("trace_");
  const auto run = [&prefix] {
    const TraceVariable file("HEADRACE_COMM_TRACE_FILE", prefix);
    with_ranks(2, [](Comm& comm) {
      ok(comm.barrier());
      OpOptions late;
      late.timeout = std::chrono::milliseconds(20);
      if (comm.rank() == 0) {
        EXPECT_EQ(comm.barrier(late).code(), Code::timed_out);
      }
      while (!comm.is_aborted()) std::this_thread::yield();
    });
    leave();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  EXPECT_THAT(bytes_of(prefix + "0"), HasSubstr("rank 1 has not come within 20 ms"));
  EXPECT_THAT(bytes_of(prefix + "1"), HasSubstr("gloo:barrier"));  // it has called nothing since
}

TEST_F(CommObserversDeathTest, write_no_file_if_all_is_well) {
  const std::string prefix = path("trace_");
  const auto run = [&prefix] {
    const TraceVariable file("HEADRACE_COMM_TRACE_FILE", prefix);
    with_ranks(2, [](Comm& comm) {
      ok(comm.barrier());
      must(comm.finalize());
    });
    leave();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  EXPECT_FALSE(fs::exists(prefix + "0"));
}

TEST_F(CommObserversDeathTest, write_the_file_of_a_rank_that_does_nothing_while_others_fail) {
  const std::string prefix = path("trace_");
  const auto run = [&prefix] {
    const TraceVariable file("HEADRACE_COMM_TRACE_FILE", prefix);
    with_ranks(2, [&](Comm& comm) {
      OpOptions late;
      late.timeout = std::chrono::milliseconds(20);
      if (comm.rank() == 0) {
        EXPECT_EQ(comm.barrier(late).code(), Code::timed_out);
      }
      while (!fs::exists(prefix + "1")) std::this_thread::yield();
    });
    leave();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(CommObserversDeathTest, write_the_file_before_abort_on_error_ends_the_process) {
  const std::string prefix = path("trace_");
  const auto run = [&prefix] {
    const TraceVariable file("HEADRACE_COMM_TRACE_FILE", prefix);
    const std::string name = unique_comm_name();
    on_threads(2, [&](int rank) {
      CommOptions options = rank_options(rank, 2, name);
      options.abort_on_error = true;
      Comm comm = must(Comm::open(options));
      OpOptions late;
      late.timeout = std::chrono::milliseconds(20);
      if (rank == 0) static_cast<void>(comm.barrier(late));
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    });
  };
  EXPECT_EXIT(run(), testing::KilledBySignal(SIGABRT), "the process ends");
  EXPECT_THAT(bytes_of(prefix + "0"), HasSubstr("rank 1 has not come within 20 ms"));
}

TEST_F(CommObservers, refuse_nans_and_write_the_log_if_asked) {
  const TraceVariable check("HEADRACE_COMM_NAN_CHECK", "1");
  const TraceVariable log("HEADRACE_COMM_LOG", path("log"));
  with_ranks(1, [](Comm& comm) {
    std::vector<float> bad{std::numeric_limits<float>::quiet_NaN()};
    EXPECT_EQ(comm.all_reduce(bad, ReduceOp::sum).code(), Code::invalid_argument);
    ok(comm.barrier());
  });
  EXPECT_THAT(bytes_of(path("log")), HasSubstr("op=barrier number=1 event=completed"));
}

TEST_F(CommObservers, are_listed_with_the_sources_of_their_values) {
  const TraceVariable trace("HEADRACE_COMM_TRACE", "17");
  const auto options = must(list_comm_options());
  ASSERT_FALSE(options.empty());
  EXPECT_EQ(options[0].name, "comm.trace");
  EXPECT_EQ(options[0].value, "17");
  EXPECT_EQ(options[0].source, "environment");
  for (std::size_t i = 1; i < options.size(); ++i) EXPECT_EQ(options[i].source, "default");
}

TEST_F(CommObservers, name_the_option_whose_value_is_wrong) {
  const TraceVariable trace("HEADRACE_COMM_TRACE", "many");
  const auto refused = Comm::open(rank_options(0, 1, "alone"));
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("HEADRACE_COMM_TRACE"));
}

}  // namespace
}  // namespace headrace::test
