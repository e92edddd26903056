// SPDX-License-Identifier: Apache-2.0
// Both sides of a lane, each in a thread.
#include "backends/shm/lanes/lane_reader.hpp"
#include "backends/shm/lanes/lane_server.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::shm {
namespace {

constexpr std::size_t room = 4 << 20;
/// On a loaded machine a thread may take long to come.
constexpr LaneLimits patient{.answer_ns = 10'000'000'000, .stall_ns = 10'000'000'000};
constexpr LaneLimits hasty{.answer_ns = 1'000'000, .stall_ns = 10'000'000'000};

/// Pages of any length at any place of two regions on either side.
struct Pages {
  std::vector<std::uint64_t> local_offsets, remote_offsets, lengths;
  std::vector<std::uint32_t> remote_regions;
  std::uint64_t bytes = 0;

  /// Where they lie here does not overlap.
  Pages(std::size_t count, std::uint64_t least, std::uint64_t most, std::mt19937_64& random) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t length = least + random() % (most - least + 1);
      local_offsets.push_back(at + random() % 3);
      at = local_offsets.back() + length;
      remote_offsets.push_back(random() % (room - length + 1));
      remote_regions.push_back(static_cast<std::uint32_t>(random() % 2));
      lengths.push_back(length);
      bytes += length;
    }
    if (at > room) throw std::logic_error("these pages have no room");
  }
};

class Lane : public testing::Test {
 protected:
  Lane() : file(), memory(LaneMemory::create(file).value()), served(LaneMemory::adopt(file).value()) {
    std::mt19937_64 generator{7};
    for (auto& bytes : owned) {
      bytes.resize(room);
      for (std::size_t at = 0; at < room; at += sizeof(std::uint64_t)) {
        const std::uint64_t word = generator();
        std::memcpy(&bytes[at], &word, sizeof word);
      }
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      LocalRegion& region = theirs[i];
      region.region_id = 11 + 256 * i;  // both want one place among those that are held
      region.base = owned[i].data();
      region.length_bytes = room;
      slots[i].store(static_cast<std::uint8_t>(RegionState::registered));
      region.slot = &slots[i];
      regions.add(region);
      remotes.push_back(std::make_unique<RemoteRegion>(region));
    }
    ours.region_id = 1;
    ours.base = target.data();
    ours.length_bytes = room;
    reader = std::make_unique<LaneReader>(std::move(memory), patient);
  }
  ~Lane() override { join(); }

  void serve_late_or_twice(int rounds);
  void join() {
    for (std::thread& server : servers) server.join();
    servers.clear();
  }

  /// What reader and owner do when the reader calls.
  void serve() {
    servers.emplace_back(
        [this] { LaneServer(regions, *served, patient.stall_ns).serve([] { return true; }); });
  }

  /// Keeps what the request is described by.
  const headrace_prepare_v1& request(const Pages& pages) {
    local_handle_ = &ours;
    remote_handles_ = {remotes[0].get(), remotes[1].get()};
    headrace_side_v1 local{};
    local.struct_size = sizeof local;
    local.regions = &local_handle_;
    local.region_count = 1;
    local.columns.offsets = pages.local_offsets.data();
    local.columns.lengths = pages.lengths.data();
    headrace_side_v1 remote{};
    remote.struct_size = sizeof remote;
    remote.regions = remote_handles_.data();
    remote.region_count = 2;
    remote.columns.offsets = pages.remote_offsets.data();
    remote.columns.lengths = pages.lengths.data();
    remote.columns.region_of = pages.remote_regions.data();
    sides_ = {local, remote};
    args_ = {};
    args_.struct_size = sizeof args_;
    args_.op = HEADRACE_READ;
    args_.count = pages.lengths.size();
    args_.bytes = pages.bytes;
    args_.local = sides_.data();
    args_.remote = &sides_[1];
    return args_;
  }

  LaneEnd read(const Pages& pages, CopyMode mode = CopyMode::cached) {
    const Transfer transfer{&request(pages), nullptr, mode, &stop};
    return reader->read(transfer, {0, 0}, {pages.lengths.size(), 0}, [this] {
      ++calls;
      if (somebody_comes) serve();
    });
  }

  [[nodiscard]] bool arrived(const Pages& pages) const {
    std::vector<std::byte> expected(room, std::byte{0});
    for (std::size_t i = 0; i < pages.lengths.size(); ++i)
      std::memcpy(expected.data() + pages.local_offsets[i],
                  owned[pages.remote_regions[i]].data() + pages.remote_offsets[i], pages.lengths[i]);
    return std::memcmp(expected.data(), target.data(), room) == 0;
  }

  UniqueFd file;
  std::unique_ptr<LaneMemory> memory, served;
  std::array<std::vector<std::byte>, 2> owned;
  std::vector<std::byte> target = std::vector<std::byte>(room);
  std::array<LocalRegion, 2> theirs;
  LocalRegion ours;
  std::array<RegionSlot, 2> slots;
  ServedRegions regions;
  std::vector<std::unique_ptr<RemoteRegion>> remotes;
  std::unique_ptr<LaneReader> reader;
  std::vector<std::thread> servers;
  std::atomic<bool> stop{false};
  bool somebody_comes = true;
  int calls = 0;
  std::mt19937_64 random{20};

 private:
  void* local_handle_ = nullptr;
  std::array<void*, 2> remote_handles_{};
  std::array<headrace_side_v1, 2> sides_{};
  headrace_prepare_v1 args_{};
};

TEST_F(Lane, pages_of_all_sizes_arrive_and_nothing_else_changes) {
  struct Shape {
    std::size_t count;
    std::uint64_t least, most;
  };
  for (const Shape shape :
       {Shape{1, 1, 1}, Shape{3000, 1, 300}, Shape{900, 4096, 4096}, Shape{511, 64, 5000},
        Shape{513, 1, 5000}, Shape{5, 300'000, 700'000}, Shape{1, 4'000'000, 4'000'000}}) {
    for (const CopyMode mode : {CopyMode::cached, CopyMode::streaming}) {
      std::memset(target.data(), 0, target.size());
      const Pages pages(shape.count, shape.least, shape.most, random);
      const LaneEnd end = read(pages, mode);
      ASSERT_TRUE(end.complete) << shape.count << " pages: " << end.outcome.text;
      ASSERT_TRUE(arrived(pages)) << shape.count << " pages of " << shape.least << " to " << shape.most;
    }
  }
}

TEST_F(Lane, a_part_of_a_request_begins_and_ends_within_pages) {
  const Pages pages(300, 100, 9000, random);
  const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
  const auto call = [this] { serve(); };
  for (const auto& [from, to] : {std::pair{PagePosition{0, 0}, PagePosition{10, 37}},
                                 {PagePosition{10, 37}, PagePosition{10, 38}},
                                 {PagePosition{10, 38}, PagePosition{300, 0}}})
    ASSERT_TRUE(reader->read(transfer, from, to, call).complete);
  EXPECT_TRUE(arrived(pages));
}

TEST_F(Lane, a_server_that_has_left_is_called_again) {
  const Pages pages(10, 4096, 4096, random);
  ASSERT_TRUE(read(pages).complete);
  join();
  const int before = calls;  // more than one where the reader paused for so long that its server left
  ASSERT_GE(before, 1);
  ASSERT_TRUE(read(pages).complete);
  EXPECT_GT(calls, before);
  EXPECT_TRUE(arrived(pages));
}

TEST_F(Lane, nobody_comes_and_the_lane_is_good_for_later) {
  somebody_comes = false;
  reader = std::make_unique<LaneReader>(LaneMemory::adopt(file).value(), hasty);
  const Pages pages(700, 4096, 4096, random);
  const LaneEnd end = read(pages);
  EXPECT_FALSE(end.complete);
  EXPECT_TRUE(end.outcome.status.ok());
  EXPECT_EQ(end.reached, (PagePosition{0, 0}));
  EXPECT_EQ(reader->state(), LaneReader::State::unanswered);
  serve();  // too late: there is nothing to do
  join();
  somebody_comes = true;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!read(pages).complete && std::chrono::steady_clock::now() < until)
    if (reader->state() != LaneReader::State::unanswered) break;
  EXPECT_TRUE(arrived(pages));
}

TEST_F(Lane, what_is_not_registered_is_refused_by_name) {
  regions.remove(theirs[1]);
  const Pages pages(700, 4096, 4096, random);
  const LaneEnd end = read(pages);
  EXPECT_FALSE(end.complete);
  EXPECT_TRUE(end.outcome.status.ok());
  EXPECT_EQ(end.refused_region, theirs[1].region_id);
  EXPECT_EQ(reader->state(), LaneReader::State::spoiled);
}

TEST_F(Lane, a_region_that_goes_on_the_way_ends_the_part) {
  const Pages pages(2000, 2000, 2048, random);
  const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
  const std::array<std::vector<std::byte>, 2> before = owned;
  std::thread owner;
  // The server asks this when the ring is full or after some pages, in any case before the last page.
  const auto go_once = [&] {
    if (owner.joinable()) return true;
    owner = std::thread([this] {
      regions.remove(theirs[0]);
      std::fill(owned[0].begin(), owned[0].end(), std::byte{0});  // no server reads it any more
    });
    while (!theirs[0].gone) std::this_thread::yield();
    return true;
  };
  const LaneEnd end = reader->read(transfer, {0, 0}, {2000, 0}, [&] {
    servers.emplace_back([&] { LaneServer(regions, *served, patient.stall_ns).serve(go_once); });
  });
  join();
  owner.join();
  EXPECT_FALSE(end.complete);
  EXPECT_TRUE(end.outcome.status.ok()) << end.outcome.text;
  EXPECT_EQ(end.refused_region, theirs[0].region_id);
  EXPECT_EQ(reader->state(), LaneReader::State::spoiled);
  ASSERT_GT(end.reached.page, 0U);
  ASSERT_LT(end.reached.page, 2000U);
  for (std::size_t i = 0; i < end.reached.page; ++i)
    ASSERT_EQ(std::memcmp(target.data() + pages.local_offsets[i],
                          before[pages.remote_regions[i]].data() + pages.remote_offsets[i], pages.lengths[i]),
              0)
        << "page " << i;
}

TEST_F(Lane, a_region_that_its_owner_calls_gone_is_not_found_though_it_is_served) {
  const Pages pages(2000, 2000, 2048, random);
  const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
  const LaneEnd end = reader->read(transfer, {0, 0}, {2000, 0}, [this] {
    slots[0].store(static_cast<std::uint8_t>(RegionState::gone));
    serve();
  });
  EXPECT_FALSE(end.complete);
  EXPECT_EQ(end.outcome.status.code, Code::not_found) << end.outcome.text;
  EXPECT_EQ(reader->state(), LaneReader::State::spoiled);
  // Nothing is read any more. Without room in the ring the server would wait until it gives the reader up.
  const std::jthread makes_room([this](const std::stop_token& over) {
    LaneWords& words = served->words();
    while (!over.stop_requested()) words.consumed.store(words.given.load());
  });
  join();
}

/// Takes memory away from under the registration of theirs[0].
class LostMemory : public Lane, public testing::WithParamInterface<const char*> {
 protected:
  LostMemory() {
    file_ = UniqueFd(::memfd_create("lost", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(file_.get(), room), 0);
    const bool of_file = GetParam() == std::string_view("truncated");
    at_ = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, of_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                 of_file ? file_.get() : -1, 0);
    EXPECT_NE(at_, MAP_FAILED);
    std::memcpy(at_, owned[0].data(), room);
    theirs[0].base = static_cast<std::byte*>(at_);
  }
  ~LostMemory() override {
    join();
    ::munmap(at_, room);
  }
  void lose() {
    if (GetParam() == std::string_view("unmapped")) {
      EXPECT_EQ(::munmap(at_, room), 0);
    } else if (GetParam() == std::string_view("protected")) {
      EXPECT_EQ(::mprotect(at_, room, PROT_NONE), 0);
    } else {
      EXPECT_EQ(::ftruncate(file_.get(), 0), 0);
    }
  }

 private:
  UniqueFd file_;
  void* at_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Ways, LostMemory, testing::Values("unmapped", "protected", "truncated"),
                         [](const auto& way) { return std::string(way.param); });

TEST_P(LostMemory, under_a_server_ends_the_part_and_no_reader_gets_the_region_any_more) {
  const Pages pages(2000, 2000, 2048, random);
  const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
  bool lost = false;
  // The server asks this when the ring is full or after some pages, in any case before the last page.
  const auto lose_once = [&] {
    if (!std::exchange(lost, true)) lose();
    return true;
  };
  const LaneEnd end = reader->read(transfer, {0, 0}, {2000, 0}, [&] {
    servers.emplace_back([&] { LaneServer(regions, *served, patient.stall_ns).serve(lose_once); });
  });
  join();
  EXPECT_FALSE(end.complete);
  EXPECT_TRUE(end.outcome.status.ok()) << end.outcome.text;
  EXPECT_EQ(end.refused_region, theirs[0].region_id);
  EXPECT_EQ(reader->state(), LaneReader::State::spoiled);
  ASSERT_GT(end.reached.page, 0U);
  ASSERT_LT(end.reached.page, 2000U);
  for (std::size_t i = 0; i < end.reached.page; ++i)
    ASSERT_EQ(std::memcmp(target.data() + pages.local_offsets[i],
                          owned[pages.remote_regions[i]].data() + pages.remote_offsets[i], pages.lengths[i]),
              0)
        << "page " << i;
  EXPECT_EQ(regions.pin(theirs[0].region_id).get(), nullptr);
  EXPECT_EQ(regions.pin(theirs[1].region_id).get(), &theirs[1]);
  EXPECT_EQ(theirs[0].copied_out_of, 0U) << "nobody may wait for it when it is deregistered";
}

TEST_F(Lane, a_stopped_part_ends_canceled) {
  stop = true;
  const Pages pages(700, 4096, 4096, random);
  EXPECT_EQ(read(pages).outcome.status.code, Code::canceled);
}

TEST_F(Lane, an_owner_that_leaves_in_the_middle_is_given_up) {
  const Pages pages(900, 4096, 4096, random);
  const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
  // Fills the ring before anybody reads it, then leaves instead of waiting.
  const LaneEnd end = reader->read(transfer, {0, 0}, {900, 0},
                                   [this] { LaneServer(regions, *served).serve([] { return false; }); });
  EXPECT_FALSE(end.complete);
  EXPECT_TRUE(end.outcome.status.ok());
  EXPECT_EQ(end.reached, (PagePosition{lane_ring_bytes / 4096, 0}));
  EXPECT_EQ(end.refused_region, 0);
  EXPECT_EQ(reader->state(), LaneReader::State::spoiled);
}

void Lane::serve_late_or_twice(int rounds) {
  const auto patience = LaneLimits{.answer_ns = 300'000, .stall_ns = 10'000'000'000};
  reader = std::make_unique<LaneReader>(LaneMemory::adopt(file).value(), patience);
  int complete = 0, late_ones = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto seen = [&] { return complete > 0 && late_ones > 0; };
  for (int round = 0; (round < rounds || !seen()) && std::chrono::steady_clock::now() < until; ++round) {
    std::memset(target.data(), 0, target.size());
    const Pages pages(40, 4096, 4096, random);
    const Transfer transfer{&request(pages), nullptr, CopyMode::cached, &stop};
    const LaneEnd end = reader->read(transfer, {0, 0}, {40, 0}, [this] {
      for (int i = 0; i < 2; ++i) {
        const auto late = std::chrono::microseconds(random() % 600);
        servers.emplace_back([this, late] {
          std::this_thread::sleep_for(late);
          LaneServer(regions, *served).serve([] { return true; });
        });
      }
    });
    ASSERT_NE(reader->state(), LaneReader::State::spoiled);
    ++(end.complete ? complete : late_ones);
    if (!end.complete) continue;
    ASSERT_TRUE(arrived(pages)) << "round " << round;
  }
  EXPECT_GT(complete, 0);
  EXPECT_GT(late_ones, 0);
}

TEST_F(Lane, servers_that_come_late_or_twice_change_no_page) { serve_late_or_twice(40); }
TEST_F(Lane, servers_that_come_late_or_twice_change_no_page_many_rounds) { serve_late_or_twice(200); }

TEST_F(Lane, a_region_can_go_while_others_are_asked_for_without_end) {
  // A reader that takes everything at once, and asks for as much again.
  LaneWords& words = served->words();
  served->run(0) = {theirs[0].region_id, 0, 0, 4096};
  for (std::uint64_t i = 1; i < lane_runs; ++i) served->run(i) = {theirs[1].region_id, 0, 0, room};
  words.asked = lane_runs;
  words.state = LaneState::called;
  std::atomic<bool> over{false};
  std::thread hasty_reader([&] {
    while (!over) words.consumed.store(words.given.load());
  });
  serve();
  while (words.given.load() < 2 * room) std::this_thread::yield();
  regions.remove(theirs[0]);  // was copied out of, and is not any more
  stop = true;
  regions.remove(theirs[1]);
  join();
  over = true;
  hasty_reader.join();
  EXPECT_EQ(words.state, LaneState::refused);
}

// ------------------------------------------------------------------ a reader that lies

class LaneStranger : public Lane {
 protected:
  /// Serves what `prepare` wrote; returns the state in which the lane is left.
  template <class Prepare>
  LaneState served_after(const Prepare& prepare) {
    LaneWords& words = served->words();
    prepare(words);
    words.state = LaneState::called;
    LaneServer(regions, *served).serve([] { return true; });
    return words.state;
  }
};

TEST_F(LaneStranger, asks_beyond_a_region) {
  EXPECT_EQ(served_after([&](LaneWords& words) {
              served->run(0) = {theirs[0].region_id, 0, room - 10, 11};
              words.asked = 1;
            }),
            LaneState::refused);
}

TEST_F(LaneStranger, asks_for_a_run_that_wraps) {
  EXPECT_EQ(served_after([&](LaneWords& words) {
              served->run(0) = {theirs[0].region_id, 0, 10, ~std::uint64_t{0} - 5};
              words.asked = 1;
            }),
            LaneState::refused);
}

TEST_F(LaneStranger, asks_for_more_than_the_lane_holds) {
  EXPECT_EQ(served_after([&](LaneWords& words) { words.asked = lane_runs + 1; }), LaneState::refused);
}

TEST_F(LaneStranger, says_that_it_consumed_what_was_not_given) {
  EXPECT_EQ(served_after([&](LaneWords& words) {
              served->run(0) = {theirs[0].region_id, 0, 0, 100};
              words.asked = 1;
              words.consumed = 5000;
            }),
            LaneState::refused);
}

TEST_F(LaneStranger, asks_and_never_reads) {
  EXPECT_EQ(served_after([&](LaneWords& words) {
              served->run(0) = {theirs[0].region_id, 0, 0, room};
              words.asked = 1;
            }),
            LaneState::refused);
}

TEST_F(LaneStranger, begins_with_positions_of_its_own_making) {
  const std::uint64_t far = ~std::uint64_t{0} - 3;
  EXPECT_EQ(served_after([&](LaneWords& words) {
              words.taken_runs = words.asked = far;
              words.given = words.consumed = far;
              served->run(far) = {theirs[0].region_id, 0, 3, 200};
              words.asked = far + 1;
            }),
            LaneState::idle);
  EXPECT_EQ(std::memcmp(served->ring(far), owned[0].data() + 3, 200), 0);
}

}  // namespace
}  // namespace headrace::shm
