// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace headrace {
namespace {

struct Line {
  LogLevel level;
  std::string room;
  std::string text;
};

class Lines {
 public:
  LogSink sink() {
    return [this](LogLevel level, std::string_view room, std::string_view text) {
      const std::scoped_lock lock(mutex_);
      lines_.push_back({level, std::string(room), std::string(text)});
    };
  }
  std::vector<Line> taken() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Line> lines_;
};

TEST(Log, OnlyWarningsAndErrorsAreLoggedByDefault) {
  Lines lines;
  Logger logger;
  logger.set_sink(lines.sink());
  const Log log(logger, "tcp");
  log.info("silent");
  log.warn("slow peer {}", "b");
  log.error("lost");
  const auto said = lines.taken();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].room, "tcp");
  EXPECT_EQ(said[0].text, "slow peer b");
  EXPECT_EQ(said[1].level, LogLevel::error);
}

TEST(Log, ALevelForOneRoomDoesNotChangeTheOthers) {
  Lines lines;
  Logger logger;
  logger.set_sink(lines.sink());
  const Log before(logger, "tcp");  // made before set_level
  ASSERT_TRUE(logger.set_level(" error , tcp = debug ").ok());
  const Log after(logger, "engine");
  before.debug("heard");
  before.trace("not heard");
  after.warn("not heard");
  after.error("heard");
  const auto said = lines.taken();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].room, "tcp");
  EXPECT_EQ(said[1].room, "engine");
}

TEST(Log, TheLevelOffSilencesARoomCompletely) {
  Lines lines;
  Logger logger;
  logger.set_sink(lines.sink());
  const Log log(logger, "tcp");
  ASSERT_TRUE(logger.set_level("trace,tcp=off").ok());
  log.error("not heard");
  EXPECT_TRUE(lines.taken().empty());
}

TEST(Log, AWrongLevelIsRefusedWithTheValidOnesAndChangesNothing) {
  Logger logger;
  const Log log(logger, "tcp");
  ASSERT_TRUE(logger.set_level("debug").ok());
  const auto refused = logger.set_level("info,tcp=loud");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "log level \"loud\" in \"info,tcp=loud\" is not one of off, error, warn, info, debug, trace");
  EXPECT_EQ(logger.set_level("=info").code(), Code::invalid_argument);
  EXPECT_TRUE(log.enabled(LogLevel::debug));
}

TEST(Log, WithoutASinkALineOnStderrHasTimeLevelRoomAndText) {
  Logger logger;
  const Log log(logger, "shm");
  ::testing::internal::CaptureStderr();
  log.warn("ring full {}", 7);
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find(" warn  shm: ring full 7\n"), std::string::npos) << line;
  EXPECT_EQ(line.find("20"), 0U) << line;
}

TEST(Log, BracesInTheTextAreNotFormattedAgain) {
  Logger logger;
  const Log log(logger, "shm");
  ::testing::internal::CaptureStderr();
  log.error("{}", "json {\"a\": 1} {}");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("json {\"a\": 1} {}"), std::string::npos);
}

TEST(Log, ThreadsMayLogWhileLevelAndSinkChange) {
  Lines lines;
  Logger logger;
  logger.set_sink(lines.sink());
  ASSERT_TRUE(logger.set_level("trace").ok());
  std::vector<std::thread> speakers;
  for (int i = 0; i < 4; ++i) {
    speakers.emplace_back([&logger, i] {
      const Log log(logger, i % 2 == 0 ? "even" : "odd");
      for (int n = 0; n < 200; ++n) log.error("{}", n);
    });
  }
  for (int n = 0; n < 100; ++n) {
    logger.set_sink(lines.sink());
    ASSERT_TRUE(logger.set_level(n % 2 == 0 ? "error" : "trace,odd=error").ok());
  }
  for (std::thread& speaker : speakers) speaker.join();
  EXPECT_EQ(lines.taken().size(), 800U);
}

TEST(Log, ASinkMayItselfSetTheLevel) {
  Logger logger;
  const Log log(logger, "tcp");
  logger.set_sink([&](LogLevel, std::string_view, std::string_view) { (void)logger.set_level("off"); });
  log.error("enough");
  EXPECT_FALSE(log.enabled(LogLevel::error));
}

}  // namespace
}  // namespace headrace
