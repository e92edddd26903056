// SPDX-License-Identifier: Apache-2.0
#include "telemetry/telemetry.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <thread>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;

TEST(TelemetryCounter, ManyThreadsLoseNoCount) {
  TelemetryCounter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) counter.add(3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 120'000U);
}

TEST(Histogram, BucketsArePowersOfTwo) {
  Histogram histogram;
  for (const std::uint64_t value : {0ULL, 1ULL, 2ULL, 3ULL, 4ULL, ~0ULL}) histogram.record(value);
  const HistogramSnapshot seen = histogram.snapshot();
  EXPECT_EQ(seen.count, 6U);
  EXPECT_EQ(seen.buckets[0], 1U);
  EXPECT_EQ(seen.buckets[1], 1U);
  EXPECT_EQ(seen.buckets[2], 2U);
  EXPECT_EQ(seen.buckets[3], 1U);
  EXPECT_EQ(seen.buckets[64], 1U);
  EXPECT_EQ(seen.smallest, 0U);
  EXPECT_EQ(seen.largest, ~0ULL);
}

TEST(Histogram, PercentilesLieWithinAFactorOfTwoAndTheEndsAreExact) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 1000; ++value) histogram.record(value);
  const HistogramSnapshot seen = histogram.snapshot();
  for (const double percent : {1.0, 10.0, 50.0, 90.0, 99.0}) {
    EXPECT_GE(seen.percentile(percent), percent * 10 / 2) << percent;
    EXPECT_LE(seen.percentile(percent), percent * 10 * 2) << percent;
  }
  EXPECT_EQ(seen.percentile(0), 1);
  EXPECT_EQ(seen.percentile(100), 1000);
  EXPECT_EQ(seen.percentile(-5), 1);
  EXPECT_EQ(seen.percentile(500), 1000);
  EXPECT_DOUBLE_EQ(seen.mean(), 500.5);
}

TEST(Histogram, ASingleValueIsEveryPercentileAndAnEmptyHistogramGivesZero) {
  Histogram histogram;
  EXPECT_EQ(histogram.snapshot().percentile(50), 0);
  EXPECT_EQ(histogram.snapshot().smallest, 0U);
  EXPECT_EQ(histogram.snapshot().mean(), 0);
  histogram.record(700);
  for (const double percent : {0.0, 50.0, 100.0}) EXPECT_EQ(histogram.snapshot().percentile(percent), 700);
}

TEST(Histogram, ThreadsMayRecordDuringASnapshot) {
  Histogram histogram;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&histogram, t] {
      for (int i = 0; i < 5000; ++i) histogram.record(t);
    });
  }
  for (int i = 0; i < 100; ++i) {
    const HistogramSnapshot seen = histogram.snapshot();
    EXPECT_LE(seen.percentile(50), 3);
    EXPECT_LE(seen.smallest, seen.largest);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.snapshot().count, 15'000U);
  EXPECT_EQ(histogram.snapshot().sum, 30'000U);
}

TEST(Telemetry, TheSameNameGivesTheSameCounter) {
  const FakeClock clock;
  Telemetry telemetry(clock);
  TelemetryCounter& first = telemetry.counter("tcp.sent_bytes");
  telemetry.counter("another").add();
  telemetry.counter("tcp.sent_bytes").add(5);
  first.add(2);
  telemetry.histogram("engine.request_ns").record(9);
  const TelemetrySnapshot seen = telemetry.snapshot();
  EXPECT_EQ(seen.counters, (std::map<std::string, std::uint64_t>{{"another", 1}, {"tcp.sent_bytes", 7}}));
  EXPECT_EQ(seen.histograms.at("engine.request_ns").count, 1U);
}

TEST(Telemetry, TheRingKeepsTheLatestEventsInOrderAndCountsTheOthers) {
  FakeClock clock;
  Telemetry telemetry(clock, 2);
  for (const char* text : {"first", "second", "third"}) {
    telemetry.event("tcp", text);
    clock.advance(1ns);
  }
  const TelemetrySnapshot seen = telemetry.snapshot();
  ASSERT_EQ(seen.events.size(), 2U);
  EXPECT_EQ(seen.events[0].text, "second");
  EXPECT_EQ(seen.events[1].text, "third");
  EXPECT_EQ(seen.events[1].room, "tcp");
  EXPECT_EQ(seen.events[1].time_ns - seen.events[0].time_ns, 1U);
  EXPECT_EQ(seen.events_dropped, 1U);
}

TEST(Telemetry, TheJsonHoldsTheWholeSnapshot) {
  const FakeClock clock;
  Telemetry telemetry(clock);
  telemetry.counter("c").add(~std::uint64_t{0});
  telemetry.histogram("h").record(0);
  telemetry.histogram("h").record(6);
  telemetry.event("engine", "peer \"a\xff\" lost\n");
  const auto read = nlohmann::json::parse(telemetry.snapshot().json());
  EXPECT_EQ(read["counters"]["c"], ~std::uint64_t{0});
  EXPECT_EQ(read["histograms"]["h"]["count"], 2);
  EXPECT_EQ(read["histograms"]["h"]["buckets"], (nlohmann::json{{"0", 1}, {"4", 1}}));
  EXPECT_EQ(read["histograms"]["h"]["largest"], 6);
  EXPECT_EQ(read["events"][0]["room"], "engine");
  EXPECT_EQ(read["events"][0]["text"], "peer \"a\xef\xbf\xbd\" lost\n");
  EXPECT_EQ(read["events_dropped"], 0);
  EXPECT_EQ(nlohmann::json::parse(TelemetrySnapshot{}.json())["counters"], nlohmann::json::object());
}

TEST(Telemetry, ThreadsMayCountAndReportEventsDuringASnapshot) {
  const SteadyClock clock;
  Telemetry telemetry(clock, 16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&telemetry, t] {
      for (int i = 0; i < 300; ++i) {
        telemetry.counter("shared").add();
        telemetry.counter("own." + std::to_string(t)).add();
        telemetry.event("test", std::to_string(i));
      }
    });
  }
  for (int i = 0; i < 50; ++i) EXPECT_LE(telemetry.snapshot().events.size(), 16U);
  for (std::thread& thread : threads) thread.join();
  const TelemetrySnapshot seen = telemetry.snapshot();
  EXPECT_EQ(seen.counters.at("shared"), 900U);
  EXPECT_EQ(seen.events.size() + seen.events_dropped, 900U);
}

}  // namespace
}  // namespace headrace
