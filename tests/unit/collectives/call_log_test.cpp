// SPDX-License-Identifier: Apache-2.0
// The calls of a communicator as lines.
#include "collectives/call_log.hpp"
#include "collectives/line_file.hpp"
#include "ranks.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <regex>

namespace headrace::test {
namespace {

using collectives::call_log;
using collectives::LineFile;
using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;

class LogOfTest {
 public:
  [[nodiscard]] std::string path() const { return folder_.path() + "/log"; }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::ifstream file(path());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

 private:
  const TemporaryFolder folder_;
};

TEST(CallLog, has_a_line_for_each_event_with_count_type_and_time) {
  const LogOfTest file;
  with_ranks(2, [&](Comm& comm) {
    if (comm.rank() == 0) comm.add_hooks(call_log(comm, must(LineFile::open(file.path()))));
    std::vector<float> elements(1000);
    ok(comm.all_reduce(elements, ReduceOp::sum));
    MessageOptions options;
    options.tag = 7;
    comm.rank() == 0 ? ok(comm.recv(elements, 1, options)) : ok(comm.send(elements, 0, options));
  });
  const auto lines = file.lines();
  ASSERT_EQ(lines.size(), 7U);
  const std::regex form(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z rank=0 comm="[^"]+" .*event=.*)");
  for (const auto& line : lines) EXPECT_TRUE(std::regex_match(line, form)) << line;
  EXPECT_THAT(lines[0], HasSubstr("event=opened size=2"));
  const char* events[] = {"scheduled", "started", "completed"};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(lines[1 + i], HasSubstr(std::string("op=all_reduce number=2 event=") + events[i] +
                                        " count=1000 dtype=float32 us="));
    EXPECT_THAT(lines[4 + i], HasSubstr(std::string("op=recv number=1 event=") + events[i] +
                                        " count=1000 dtype=float32 peer=1 tag=7 us="));
  }
}

TEST(CallLog, has_failed_and_refused_calls_and_the_end_of_the_communicator) {
  const LogOfTest file;
  with_ranks(2, [&](Comm& comm) {
    if (comm.rank() == 0) {
      comm.add_hooks(call_log(comm, must(LineFile::open(file.path()))));
      OpOptions late;
      late.timeout = std::chrono::milliseconds(20);
      EXPECT_EQ(comm.barrier(late).code(), Code::timed_out);
      EXPECT_FALSE(comm.finalize().ok());
      EXPECT_FALSE(comm.barrier().ok());
    } else {
      while (!comm.is_aborted()) std::this_thread::yield();
    }
  });
  const auto lines = file.lines();
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr("op=barrier number=2 event=failed"), HasSubstr(R"( of \"comm-)"),
                             HasSubstr("rank 1 has not come within 20 ms"))));
  EXPECT_THAT(lines, Contains(HasSubstr("event=ended error=")));
  EXPECT_THAT(lines, Contains(HasSubstr("op=barrier event=refused error=")));
}

TEST(CallLog, keeps_the_lines_of_several_ranks_whole) {
  const LogOfTest file;
  constexpr int ranks = 3, calls = 200;
  with_ranks(ranks, [&](Comm& comm) {
    comm.add_hooks(call_log(comm, must(LineFile::open(file.path()))));
    for (int i = 0; i < calls; ++i) ok(comm.barrier());
  });
  const auto lines = file.lines();
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(ranks * (3 * calls + 1)));
  for (const auto& line : lines)
    ASSERT_THAT(line, ContainsRegex("^20[^ ]*Z rank=[0-2] comm=\"[^\"]*\" [^\"]*$"));
}

TEST(CallLog, says_once_that_its_lines_are_lost) {
  testing::internal::CaptureStderr();
  const auto file = must(LineFile::open("/dev/full"));
  file->add("first\n");
  file->add("second\n");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("write to /dev/full: its lines are lost: "));
  EXPECT_EQ(said.find("lines are lost"), said.rfind("lines are lost")) << said;
}

TEST(CallLog, names_a_file_that_cannot_be_opened) {
  const auto refused = LineFile::open("/no/such/folder/log");
  EXPECT_EQ(refused.code(), Code::not_found);
  EXPECT_THAT(refused.error().message, HasSubstr("/no/such/folder/log"));
}

}  // namespace
}  // namespace headrace::test
