// SPDX-License-Identifier: Apache-2.0
// The last calls of a rank.
#include "ranks.hpp"

#include "support/temporary_folder.hpp"

#include <headrace/flight_recorder.hpp>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <latch>

namespace headrace::test {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Json dump_of(const FlightRecorder& recorder) { return Json::parse(recorder.dump()); }

/// The values of one key of all calls.
template <class T>
std::vector<T> each(const Json& dump, const char* key) {
  std::vector<T> values;
  for (const Json& entry : dump["entries"]) values.push_back(entry[key].get<T>());
  return values;
}

TEST(FlightRecorder, has_number_state_times_sizes_and_types_of_each_call) {
  with_ranks(2, [](Comm& comm) {
    FlightRecorder recorder;
    recorder.attach(comm);
    std::vector<float> part(3), all(6);
    OpOptions options;
    options.timeout = std::chrono::milliseconds(1500);
    ok(comm.all_gather_single(all, part, options));
    ok(comm.barrier());
    const Json dump = dump_of(recorder);
    EXPECT_EQ(dump["version"], "2.10");
    EXPECT_EQ(dump["rank"], comm.rank());
    ASSERT_EQ(dump["entries"].size(), 2U);
    const Json& entry = dump["entries"][0];
    EXPECT_EQ(entry["profiling_name"], "gloo:all_gather_single");
    EXPECT_EQ(entry["collective_seq_id"], 2);
    EXPECT_EQ(entry["process_group"][0], comm.name());
    EXPECT_EQ(entry["input_sizes"], Json::parse("[[3]]"));
    EXPECT_EQ(entry["output_sizes"], Json::parse("[[6]]"));
    EXPECT_EQ(entry["input_dtypes"], Json::parse(R"(["Float"])"));
    EXPECT_EQ(entry["output_dtypes"], Json::parse(R"(["Float"])"));
    EXPECT_EQ(entry["timeout_ms"], 1500);
    EXPECT_EQ(entry["state"], "completed");
    EXPECT_EQ(entry["retired"], true);
    EXPECT_EQ(entry["is_p2p"], false);
    EXPECT_LE(entry["time_created_ns"], entry["time_discovered_started_ns"]);
    EXPECT_LE(entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"]);
    EXPECT_EQ(dump["entries"][1]["timeout_ms"], 60'000);  // the communicator's
    EXPECT_EQ(dump["entries"][1]["input_sizes"], Json::array());
    EXPECT_EQ(dump["pg_config"][comm.name()]["ranks"], "[0, 1]");
    EXPECT_EQ(dump["pg_status"]["0"], Json::parse(R"({"last_enqueued_collective": 3,
        "last_started_collective": 3, "last_completed_collective": 3, "error": ""})"));
  });
}

TEST(FlightRecorder, keeps_the_last_calls) {
  with_ranks(2, [](Comm& comm) {
    FlightRecorder recorder(3);
    recorder.attach(comm);
    for (int i = 0; i < 5; ++i) ok(comm.barrier());
    EXPECT_THAT(each<int>(dump_of(recorder), "collective_seq_id"), ElementsAre(4, 5, 6));
    EXPECT_THAT(each<int>(dump_of(recorder), "record_id"), ElementsAre(2, 3, 4));
  });
}

TEST(FlightRecorder, shows_calls_that_are_under_way_and_the_state_of_one_that_fails) {
  const std::string name = unique_comm_name();
  std::latch dumped(1);
  on_threads(2, [&](int rank) {
    Comm comm = must(Comm::open(rank_options(rank, 2, name)));
    if (rank == 1) return dumped.wait();
    FlightRecorder recorder;
    recorder.attach(comm);
    OpOptions options;
    options.async = true;
    const Work first = must(comm.barrier(options)), second = must(comm.barrier(options));
    while (dump_of(recorder)["pg_status"]["0"]["last_started_collective"] != 2) std::this_thread::yield();
    const Json dump = dump_of(recorder);
    EXPECT_THAT(each<std::string>(dump, "state"), ElementsAre("started", "scheduled"));
    EXPECT_THAT(each<bool>(dump, "retired"), ElementsAre(false, false));
    EXPECT_EQ(dump["pg_status"]["0"]["last_enqueued_collective"], 3);
    comm.abort("enough");
    EXPECT_EQ(first.wait().code(), Code::canceled);
    EXPECT_EQ(second.wait().code(), Code::canceled);
    const Json after = dump_of(recorder);
    EXPECT_THAT(each<std::string>(after, "state"), ElementsAre("started", "started"));
    EXPECT_THAT(each<bool>(after, "retired"), ElementsAre(true, true));
    EXPECT_THAT(each<std::string>(after, "error"), ElementsAre(HasSubstr("enough"), HasSubstr("enough")));
    EXPECT_EQ(after["pg_status"]["0"]["last_completed_collective"], -1);
    EXPECT_THAT(after["pg_status"]["0"]["error"].get<std::string>(), HasSubstr("enough"));
    dumped.count_down();
  });
}

/// Group and number of each message.
std::vector<std::string> messages(const FlightRecorder& recorder) {
  std::vector<std::string> lines;
  const Json dump = dump_of(recorder);
  for (const Json& entry : dump["entries"]) {
    const std::string group = entry["process_group"][0];
    EXPECT_TRUE(dump["pg_config"].contains(group)) << group;
    EXPECT_EQ(entry["is_p2p"], true);
    lines.push_back(group.substr(group.find(' ') + 1) + " " + entry["profiling_name"].get<std::string>() +
                    " " + entry["p2p_seq_id"].dump());
  }
  return lines;
}

TEST(FlightRecorder, numbers_messages_alike_on_both_ranks_whatever_else_they_send) {
  with_ranks(3, [](Comm& comm) {
    FlightRecorder recorder;
    recorder.attach(comm);
    std::vector<int> room(4);
    if (comm.rank() == 0) {
      ok(comm.send(room, 1));
      ok(comm.send(room, 2));
      ok(comm.send(room, 2));
      EXPECT_THAT(messages(recorder),
                  ElementsAre("0->1 gloo:send 0->1 1", "0->2 gloo:send 0->1 1", "0->2 gloo:send 0->1 2"));
    } else if (comm.rank() == 1) {
      ok(comm.recv(room, 0));
      ok(comm.send(room, 2));
      EXPECT_THAT(messages(recorder), ElementsAre("0->1 gloo:recv 1<-0 1", "1->2 gloo:send 0->1 1"));
    } else {
      ok(comm.recv(room, 1));
      ok(comm.recv(room, any_source));  // from 0: 1 has sent once
      MessageOptions options;
      options.async = true;
      must(must(comm.recv(room, any_source, options)).wait());
      EXPECT_THAT(messages(recorder),
                  ElementsAre("1->2 gloo:recv 1<-0 1", "0->2 gloo:recv 1<-0 1", "0->2 gloo:recv 1<-0 2"));
    }
  });
}

TEST(FlightRecorder, has_several_communicators_with_the_ranks_of_the_first) {
  with_ranks(3, [](Comm& comm) {
    FlightRecorder recorder;
    recorder.attach(comm);
    const std::vector<int> ranks = comm.rank() == 0 ? std::vector<int>() : std::vector<int>{2, 1};
    auto part = must(comm.split(ranks, "part"));
    if (!part) return;
    recorder.attach(*part);
    ok(part->barrier());
    std::vector<int> room(1);
    part->rank() == 0 ? ok(part->send(room, 1)) : ok(part->recv(room, 0));
    const Json dump = dump_of(recorder);
    EXPECT_THAT(each<std::string>(dump, "operation"),
                ElementsAre("split", "barrier", comm.rank() == 2 ? "send" : "recv"));
    EXPECT_EQ(dump["pg_config"]["part"]["ranks"], "[2, 1]");
    EXPECT_EQ(dump["pg_config"]["part 2->1"]["ranks"], "[1, 2]");
    EXPECT_EQ(dump["entries"][2]["profiling_name"], comm.rank() == 2 ? "gloo:send 1->0" : "gloo:recv 0<-1");
    EXPECT_THAT(each<int>(dump, "pg_id"), ElementsAre(0, 1, 1));
  });
}

TEST(FlightRecorder, tells_communicators_of_one_name_apart) {
  FlightRecorder recorder;
  for (int i = 0; i < 2; ++i) {
    Comm comm = must(Comm::open(rank_options(0, 1, "again")));
    recorder.attach(comm);
    ok(comm.barrier());
  }
  const Json dump = dump_of(recorder);
  EXPECT_EQ(dump["entries"][0]["process_group"][0], "again");
  EXPECT_EQ(dump["entries"][1]["process_group"][0], "again (2)");
}

TEST(FlightRecorder, gives_lists_one_size_and_no_size_to_what_may_differ_between_ranks) {
  with_ranks(2, [](Comm& comm) {
    FlightRecorder recorder;
    recorder.attach(comm);
    std::vector<double> mine(static_cast<std::size_t>(comm.rank()) + 1), first(1), second(2);
    const std::vector<Elements> outputs{first, second};
    ok(comm.all_gather_v(outputs, mine));
    const std::vector<ConstElements> inputs{first, second};
    ok(comm.reduce_scatter_v(mine, inputs, ReduceOp::sum));
    const Json dump = dump_of(recorder);
    EXPECT_EQ(dump["entries"][0]["input_sizes"], Json::parse("[[]]"));
    EXPECT_EQ(dump["entries"][0]["output_sizes"], Json::parse("[[3]]"));
    EXPECT_EQ(dump["entries"][1]["input_sizes"], Json::parse("[[3]]"));
    EXPECT_EQ(dump["entries"][1]["output_sizes"], Json::parse("[[]]"));
  });
}

TEST(FlightRecorder, may_be_dumped_by_any_thread_while_calls_run) {
  with_ranks(2, [](Comm& comm) {
    FlightRecorder recorder(50);
    CommHook hook = recorder.attach(comm);
    std::jthread reader([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) EXPECT_LE(dump_of(recorder)["entries"].size(), 50U);
    });
    std::vector<int> numbers(10);
    OpOptions options;
    options.async = true;
    for (int i = 0; i < 200; ++i) must(must(comm.all_reduce(numbers, ReduceOp::sum, options)).wait());
    hook.remove();
    ok(comm.barrier());
    reader.request_stop();
    reader.join();
    const Json dump = dump_of(recorder);
    EXPECT_THAT(each<std::string>(dump, "operation"), testing::Each("all_reduce"));
    EXPECT_THAT(each<std::string>(dump, "state"), testing::Each("completed"));
  });
}

TEST(FlightRecorder, writes_a_pickle_with_the_rank_in_its_name) {
  FlightRecorder recorder;
  const TemporaryFolder folder;
  const std::string prefix = folder.path() + "/trace_";
  EXPECT_EQ(recorder.write(prefix).code(), Code::invalid_argument);
  Comm comm = must(Comm::open(rank_options(0, 1, "alone")));
  recorder.attach(comm);
  EXPECT_EQ(must(recorder.write(prefix)), prefix + "0");
  std::ifstream file(prefix + "0", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(bytes, recorder.dump_pickle());
  EXPECT_TRUE(bytes.starts_with("\x80\x02}(X\x07"));
  EXPECT_TRUE(bytes.ends_with("u."));
  const auto refused = recorder.write("/no/such/folder/trace_");
  EXPECT_EQ(refused.code(), Code::not_found);
  EXPECT_THAT(refused.error().message, HasSubstr("/no/such/folder/trace_0"));
}

}  // namespace
}  // namespace headrace::test
