// SPDX-License-Identifier: Apache-2.0
// Where ranks meet, and what they get when one of them does not come or comes twice.
#include "ranks.hpp"

#include "base/clock.hpp"
#include "base/unix_socket.hpp"
#include "metadata/metadata_socket.hpp"
#include "support/etcd_server.hpp"
#include "support/free_port.hpp"
#include "support/temporary_folder.hpp"
#include "wire/comm_cards.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

void expect_sum(Comm& comm) {
  std::vector<std::int32_t> data(10, comm.rank() + 1);
  ok(comm.all_reduce(data, ReduceOp::sum));
  EXPECT_EQ(data[9], comm.size() * (comm.size() + 1) / 2);
}

/// A port of this host, at which `fd` listens.
std::uint16_t listen_somewhere(UniqueFd& fd) {
  fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

/// A store that a caller brings along.
class MapStore final : public CommStore {
 public:
  Result<void> set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    values_[key] = value;
    return {};
  }
  Result<std::string> get(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return Error{Code::not_found, "no value"};
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

TEST(Meeting, is_possible_in_a_folder_at_an_address_and_in_the_callers_store) {
  const TemporaryFolder folder;
  const std::string address = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto store = std::make_shared<MapStore>();
  for (const std::string& place : {"file://" + folder.path(), address, std::string()}) {
    const std::string name = unique_comm_name();
    on_threads(3, [&](int rank) {
      CommOptions options = rank_options(rank, 3, name);
      options.meeting = place;
      if (place.empty()) options.store = store;
      Comm comm = must(Comm::open(options));
      expect_sum(comm);
    });
  }
}

TEST(Meeting, a_name_can_be_used_again) {
  const TemporaryFolder folder;
  const auto store = std::make_shared<MapStore>();  // keeps the entries of the first time
  for (int turn = 0; turn < 3; ++turn) {
    on_threads(2, [&](int rank) {
      CommOptions options = rank_options(rank, 2, "again");
      options.store = store;
      Comm comm = must(Comm::open(options));
      expect_sum(comm);
    });
  }
}

TEST(Meeting, is_possible_in_etcd_where_entries_of_an_earlier_run_are_left) {
  const EtcdServer etcd;
  for (int turn = 0; turn < 2; ++turn) {
    on_threads(3, [&](int rank) {
      CommOptions options = rank_options(rank, 3, "world");
      options.meeting = etcd.store_url("ranks");
      Comm comm = must(Comm::open(options));
      expect_sum(comm);
    });
  }
}

TEST(Meeting, a_store_that_does_not_answer_is_named) {
  CommOptions options = rank_options(1, 2, "world");
  options.meeting = "etcd://127.0.0.1:" + std::to_string(free_port()) + "/ranks";
  options.meeting_timeout = 300ms;
  const auto comm = Comm::open(options);
  ASSERT_FALSE(comm.ok());
  EXPECT_THAT(comm.error().message, HasSubstr(options.meeting.substr(7, 12)));
}

TEST(Meeting, with_a_rank_0_that_says_nothing_ends_in_time) {
  UniqueFd silent;
  CommOptions options = rank_options(1, 2, "world");
  options.meeting = "tcp://127.0.0.1:" + std::to_string(listen_somewhere(silent));
  options.meeting_timeout = 300ms;
  const auto begin = std::chrono::steady_clock::now();
  const auto comm = Comm::open(options);
  EXPECT_EQ(comm.code(), Code::timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(Meeting, keeps_a_bounded_number_of_bytes_of_strangers) {
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  std::atomic<bool> enough = false;
  std::jthread rank_0([&] {
    CommOptions options = rank_options(0, 2, "world");
    options.meeting = "tcp://" + place;
    options.interrupted = [&] { return enough.load(); };
    EXPECT_EQ(Comm::open(options).code(), Code::canceled);
  });
  metadata::SocketIdentity stranger;
  stranger.name = "stranger";
  stranger.incarnation = 1;
  const std::string value(std::size_t{16} << 20, 'x');
  Result<void> sent;
  for (int i = 0; i < 8 && (sent || sent.code() == Code::peer_lost);) {  // until rank 0 listens
    const std::string entry = wire::StoreEntry{std::to_string(i), value}.encode();
    sent = metadata::send_to(place, stranger, entry, Deadline::after(10s));
    if (sent) ++i;
  }
  EXPECT_EQ(sent.code(), Code::exhausted);
  enough = true;
}

TEST(Meeting, goes_on_when_rank_0_is_started_again) {
  const std::string name = unique_comm_name();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(free_port());
  std::promise<void> gone;
  on_threads(3, [&](int rank) {
    CommOptions options = rank_options(rank, 3, name);
    options.meeting = address;
    if (rank == 0) {
      CommOptions first = options;
      first.meeting_timeout = 300ms;
      EXPECT_EQ(Comm::open(first).code(), Code::timed_out);
      gone.set_value();
    }
    if (rank == 2) gone.get_future().wait();
    Comm comm = must(Comm::open(options));
    expect_sum(comm);
  });
}

TEST(Meeting, that_is_not_complete_in_time_names_the_ranks_that_have_not_come) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 4, name);
    options.meeting_timeout = 300ms;
    const auto late = Comm::open(options);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("waits for ranks that have not come: "));
    EXPECT_THAT(late.error().message, HasSubstr("2, 3"));
  });
}

TEST(Meeting, where_nobody_listens_is_named_with_its_address) {
  CommOptions options = rank_options(1, 2, unique_comm_name());
  options.meeting = "tcp://127.0.0.1:1";
  options.meeting_timeout = 100ms;
  const auto late = Comm::open(options);
  ASSERT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message, HasSubstr("rank 1 of 2 has not reached the meeting place: "));
  EXPECT_THAT(late.error().message, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(late.error().message, HasSubstr("Rank 0 listens there once it has started"));
}

TEST(Meeting, a_rank_that_two_callers_have_is_refused) {
  const std::string name = unique_comm_name();
  std::atomic<int> refused = 0;
  on_threads(2, [&](int) {
    CommOptions options = rank_options(1, 2, name);
    options.interrupted = [&] { return refused > 0; };  // ends the other one, for which nobody comes
    const auto result = Comm::open(options);
    ASSERT_FALSE(result.ok());
    if (result.code() == Code::invalid_argument) {
      ++refused;
      EXPECT_THAT(result.error().message, HasSubstr("has opened \"" + name + "\" as rank 1 of 2 too"));
    }
  });
  EXPECT_EQ(refused, 1);
}

TEST(Meeting, wrong_options_are_refused_with_their_values) {
  const auto refused = [](const CommOptions& options) {
    const auto result = Comm::open(options);
    EXPECT_EQ(result.code(), Code::invalid_argument);
    return result.ok() ? std::string() : result.error().message;
  };
  CommOptions good = rank_options(0, 2, unique_comm_name());
  CommOptions options = good;
  options.rank = 2;
  EXPECT_THAT(refused(options), HasSubstr("rank 2 of size 2"));
  options = good;
  options.size = 0;
  EXPECT_THAT(refused(options), HasSubstr("size 0"));
  options = good;
  options.name = "";
  EXPECT_THAT(refused(options), HasSubstr("1 to 128 bytes"));
  options = good;
  options.hints["lane_byte"] = "1MiB";
  EXPECT_THAT(refused(options), HasSubstr("did you mean \"lane_bytes\""));
  options = good;
  options.hints["chunk_bytes"] = "100";
  EXPECT_THAT(refused(options), HasSubstr("hint chunk_bytes is 100"));
  options = good;
  options.meeting = "";
  EXPECT_THAT(refused(options), HasSubstr("need a place to meet"));
  options = good;
  options.meeting = "127.0.0.1:29500";
  EXPECT_THAT(refused(options), HasSubstr("\"127.0.0.1:29500\" is no place to meet: write tcp://host:port"));
}

TEST(Meeting, sizes_that_differ_are_told) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 2 + rank, name);
    options.meeting_timeout = std::chrono::seconds(2);
    const auto result = Comm::open(options);
    ASSERT_FALSE(result.ok());
    if (rank == 1)
      EXPECT_THAT(result.error().message, HasSubstr("give all ranks the same size"));
    else  // rank 1 may have left
      EXPECT_THAT(result.error().message, testing::AnyOf(HasSubstr("they have been given different sizes"),
                                                         HasSubstr("the same name, size and meeting place")));
  });
}

TEST(Meeting, hints_that_differ_are_named) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 2, name);
    options.hints["lane_bytes"] = rank == 0 ? "64KiB" : "128KiB";
    const auto result = Comm::open(options);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.error().message, AllOf(HasSubstr("65536"), HasSubstr("131072")));
  });
}

TEST(Meeting, every_hint_has_a_sentence) {
  for (const CommHint& hint : list_comm_hints()) {
    EXPECT_THAT(hint.sentence, Not(testing::IsEmpty())) << hint.name;
    EXPECT_THAT(hint.default_value, Not(testing::IsEmpty())) << hint.name;
  }
}

}  // namespace
}  // namespace headrace::test
