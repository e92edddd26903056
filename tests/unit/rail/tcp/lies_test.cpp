// SPDX-License-Identifier: Apache-2.0
// A tcp NIC and peers that lie: each is reset or refused by name, and an honest peer beside them goes on.
#include "base/clock.hpp"
#include "base/descriptor_reserve.hpp"
#include "rail/stream/frame.hpp"
#include "rail/stream/hello.hpp"
#include "rail/tcp/address.hpp"
#include "rail/tcp/provider.hpp"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::rail::tcp {
namespace {

using namespace stream;
using stream::encode;

using Kind = Event::Kind;

/// A socket that says what a test wants.
class Liar {
 public:
  explicit Liar(const std::string& address) : address_(*read_address(address)) {
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), address_.at.get(), address_.at.length), 0);
  }
  void say(const std::string& bytes) const {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void say_hello() const { say(encode(Hello{1, address_.life, "liar"})); }
  /// What has come, and whether the NIC has closed.
  bool closed() {
    std::array<char, 4096> some;
    const ssize_t n = ::recv(fd_.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (n > 0) heard.append(some.data(), static_cast<std::size_t>(n));
    return n == 0 || (n < 0 && errno != EAGAIN);
  }
  [[nodiscard]] std::uint64_t life() const { return address_.life; }
  /// The last frame that came.
  [[nodiscard]] FrameHeader last_frame() const {
    FrameHeader header;
    if (heard.size() >= hello_head_bytes + header_bytes)
      std::memcpy(&header, heard.data() + heard.size() - header_bytes, header_bytes);
    return header;
  }

  std::string heard;

 private:
  NicAddress address_;
  UniqueFd fd_;
};

class TcpLies : public testing::Test {
 protected:
  void open(const Options& options = {}) {
    auto opened = TcpProvider::open("127.0.0.1", options);
    ASSERT_TRUE(opened) << opened.error().message;
    nic_ = std::move(*opened);
    auto registered = nic_->register_memory(
        {reinterpret_cast<std::uintptr_t>(memory_.data()), memory_.size(), {}, Access::peers_read_and_write});
    ASSERT_TRUE(registered);
    registered_ = *registered;
  }
  void SetUp() override { open(); }

  void poll() {
    std::array<Event, 8> some;
    const std::size_t n = nic_->poll(some);
    events_.insert(events_.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    if (n > 0 || !nic_->arm()) return;
    pollfd waited{nic_->descriptor(), POLLIN, 0};
    ::poll(&waited, 1, 1);
  }
  bool until(const std::function<bool()>& holds) {
    for (int i = 0; i < 20'000; ++i) {
      poll();
      if (holds()) return true;
    }
    return false;
  }
  [[nodiscard]] const Event* find(Kind kind) const {
    const auto at =
        std::find_if(events_.begin(), events_.end(), [kind](const Event& e) { return e.kind == kind; });
    return at == events_.end() ? nullptr : &*at;
  }
  /// A liar that has said hello, and its number.
  std::unique_ptr<Liar> join() {
    auto liar = std::make_unique<Liar>(nic_->address());
    liar->say_hello();
    EXPECT_TRUE(
        until([&] { return find(Kind::joined) != nullptr && (liar->closed(), !liar->heard.empty()); }));
    peer_ = find(Kind::joined)->peer;
    return liar;
  }
  /// The frame resets the liar, the peer is lost, and its sentence has this part.
  void expect_lost(const std::string& bytes, const std::string& part) {
    SCOPED_TRACE(part);
    events_.clear();
    const auto liar = join();
    liar->say(bytes);
    ASSERT_TRUE(until([&] { return liar->closed() && find(Kind::lost) != nullptr; }));
    EXPECT_EQ(find(Kind::lost)->peer, peer_);
    EXPECT_EQ(find(Kind::lost)->status.code, Code::corrupt);
    EXPECT_NE(find(Kind::lost)->text.find(part), std::string::npos) << find(Kind::lost)->text;
    EXPECT_EQ(find(Kind::marked), nullptr);
    nic_->drop_peer(peer_);
    EXPECT_EQ(memory_, std::vector<char>(memory_.size()));
  }
  /// The write is refused by name, and the peer lives.
  void expect_refused(const std::vector<Range>& ranges, std::uint64_t payload) {
    events_.clear();
    const auto liar = join();
    liar->say(write_of(ranges, payload, 9) + std::string(payload, 'x'));
    ASSERT_TRUE(until([&] { return !liar->closed() && liar->last_frame().type == FrameType::end; }));
    EXPECT_EQ(liar->last_frame().post, 1U);
    EXPECT_EQ(liar->last_frame().value, code_value(Code::not_found));
    EXPECT_EQ(find(Kind::lost), nullptr);
    EXPECT_EQ(find(Kind::marked), nullptr);
    nic_->drop_peer(peer_);
    EXPECT_EQ(memory_, std::vector<char>(memory_.size()));
  }
  static std::string write_of(const std::vector<Range>& ranges, std::uint64_t payload, std::uint32_t mark) {
    return encode(
        {.type = FrameType::write, .flags = flag_mark, .post = 1, .payload = payload, .value = mark}, ranges);
  }
  [[nodiscard]] std::uint32_t memory_id() const { return static_cast<std::uint32_t>(registered_.id); }

  std::vector<char> memory_ = std::vector<char>(10'000);
  Registered registered_;
  std::unique_ptr<TcpProvider> nic_;
  std::vector<Event> events_;
  PeerId peer_{};
};

TEST_F(TcpLies, ranges_outside_of_memory_and_unknown_memory_are_refused_and_the_peer_lives) {
  expect_refused({{memory_id(), 9'990, 11}}, 11);
  expect_refused({{memory_id(), 0, 5}, {memory_id(), UINT64_MAX - 1, 4}}, 9);
  expect_refused({{memory_id() + 1, 0, 100}}, 100);
}

TEST_F(TcpLies, frames_that_cannot_be_end_the_peer_and_say_why) {
  const auto frame = [](const FrameHeader& header) { return encode(header); };
  FrameHeader many{.type = FrameType::write, .ranges = max_ranges + 1, .post = 1, .payload = 1};
  expect_lost(std::string(reinterpret_cast<const char*>(&many), header_bytes), "too many ranges");
  expect_lost(frame({.type = FrameType{99}, .post = 1}), "no such type");
  expect_lost(frame({.type = FrameType::take, .flags = 4, .post = 1}), "no meaning");
  expect_lost(frame({.type = FrameType::write, .flags = flag_mark}), "numbered from 1");
  expect_lost(frame({.type = FrameType::write, .post = 1}), "neither bytes nor a mark");
  expect_lost(frame({.type = FrameType::message, .post = 1, .payload = max_message_bytes + 1}), "too long");
  expect_lost(frame({.type = FrameType::offer, .post = 1, .value = max_message_bytes + 1}), "1 to 65600");
  expect_lost(frame({.type = FrameType::offer, .post = 1, .payload = 3, .value = 5}), "and then whole");
  expect_lost(write_of({{memory_id(), 0, 5}}, 6, 1), "its ranges have 5 bytes");
  expect_lost(write_of({{memory_id(), 0, 0}}, 0, 1), "a range is empty");
  expect_lost(write_of({{memory_id(), 0, UINT64_MAX}, {memory_id(), 0, 2}}, 1, 1), "more bytes than 64 bits");
}

TEST_F(TcpLies, answers_that_nothing_asked_for_end_the_peer) {
  expect_lost(encode({.type = FrameType::end, .post = 7}), "there is no such post");
  expect_lost(encode({.type = FrameType::end, .post = 7, .value = 6}), "no post ends with code 6");
  expect_lost(encode({.type = FrameType::data, .post = 7, .payload = 5}), "no read waits");
  expect_lost(encode({.type = FrameType::take, .post = 7}), "no message waits");
  expect_lost(encode({.type = FrameType::message, .post = 7, .payload = 5}), "no receive was given");
}

TEST_F(TcpLies, numbers_of_posts_that_do_not_rise_end_the_peer) {
  const auto liar = join();
  const std::string write = encode({.type = FrameType::write, .flags = flag_mark, .post = 5, .value = 1});
  liar->say(write + write);
  ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
  EXPECT_EQ(find(Kind::lost)->status.code, Code::corrupt);
  EXPECT_EQ(
      std::count_if(events_.begin(), events_.end(), [](const Event& e) { return e.kind == Kind::marked; }),
      1);
}

TEST_F(TcpLies, a_message_of_another_length_than_its_offer_ends_the_peer_and_leaves_the_receive) {
  ASSERT_TRUE(nic_->post_receive({registered_.id, 0, 5000}, 3).ok());
  for (int round = 0; round < 2; ++round) {
    events_.clear();
    const auto liar = join();
    liar->say(encode({.type = FrameType::offer, .post = 1, .value = 1000}));
    ASSERT_TRUE(until([&] { return !liar->closed() && liar->last_frame().type == FrameType::take; }));
    liar->say(encode({.type = FrameType::message, .post = 1, .payload = 1001}));
    ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
    EXPECT_NE(find(Kind::lost)->text.find("1000 bytes was offered, 1001 come"), std::string::npos);
    EXPECT_EQ(find(Kind::received), nullptr);
    nic_->drop_peer(peer_);
  }
}

TEST_F(TcpLies, a_message_that_stalls_keeps_no_receive_from_those_of_other_peers) {
  ASSERT_TRUE(nic_->post_receive({registered_.id, 0, 5000}, 3).ok());
  const auto stalls = join();
  stalls->say(encode({.type = FrameType::offer, .post = 1, .value = 1000}));
  ASSERT_TRUE(until([&] { return !stalls->closed() && stalls->last_frame().type == FrameType::take; }));
  const auto ended = [&](Liar& peer, std::uint64_t token) {
    return until([&] {
      const Event* const received = find(Kind::received);
      return !peer.closed() && peer.last_frame().type == FrameType::end && received != nullptr &&
             received->token == token;
    });
  };
  events_.clear();
  const auto other = join();
  other->say(encode({.type = FrameType::offer, .post = 1, .payload = 2, .value = 2}) + "hi");
  ASSERT_TRUE(ended(*other, 3));
  EXPECT_EQ(std::string(memory_.data(), 2), "hi");

  events_.clear();
  stalls->say(encode({.type = FrameType::message, .post = 1, .payload = 1000}) + std::string(1000, 'l'));
  for (int i = 0; i < 20; ++i) poll();
  EXPECT_EQ(find(Kind::received), nullptr) << "it waits for a receive, too";
  ASSERT_TRUE(nic_->post_receive({registered_.id, 5000, 5000}, 4).ok());
  ASSERT_TRUE(ended(*stalls, 4));
  EXPECT_EQ(std::string(memory_.data() + 5000, 1000), std::string(1000, 'l'));
  EXPECT_EQ(find(Kind::received)->bytes, 1000U);
}

TEST_F(TcpLies, an_end_before_the_post_has_left_or_moved_anything_ends_the_peer) {
  const auto liar = join();
  auto key = nic_->load_memory(peer_, encode(Key{1, 77, 10'000}));  // 1: the life of the liar
  ASSERT_TRUE(key) << key.error().message;
  const std::array moves{Move{registered_.id, *key, 0, 0, 100}};
  ASSERT_TRUE(nic_->post_read({peer_, moves, 4}).ok());
  ASSERT_TRUE(until([&] { return !liar->closed() && liar->heard.size() > hello_head_bytes; }));
  liar->say(encode({.type = FrameType::end, .post = 1}));
  ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
  EXPECT_NE(find(Kind::lost)->text.find("nothing has moved"), std::string::npos);
  ASSERT_NE(find(Kind::ended), nullptr);
  EXPECT_EQ(find(Kind::ended)->status.code, Code::peer_lost);
}

TEST_F(TcpLies, a_peer_that_ends_no_post_leaves_room_for_posts_to_others) {
  const auto liar = join();
  std::uint64_t token = 0;
  while (nic_->post_write({peer_, {}, 7, ++token}).ok()) ASSERT_LE(token, nic_->info().max_posts);
  EXPECT_EQ(nic_->post_write({peer_, {}, 7, token}).code, Code::would_block);

  events_.clear();
  const auto other = join();
  EXPECT_TRUE(nic_->post_write({peer_, {}, 7, ++token}).ok());
  EXPECT_TRUE(nic_->post_message(peer_, {registered_.id, 0, 10}, ++token).ok());
}

TEST_F(TcpLies, an_end_with_the_code_of_another_kind_of_post_ends_the_peer) {
  const auto expect_lost_by = [this](Code code, const std::function<Status()>& post) {
    events_.clear();
    const auto liar = join();
    ASSERT_TRUE(post().ok());
    ASSERT_TRUE(until([&] { return !liar->closed() && liar->heard.size() > hello_head_bytes; }));
    liar->say(encode({.type = FrameType::end, .post = 1, .value = code_value(code)}));
    ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
    EXPECT_EQ(find(Kind::lost)->status.code, Code::corrupt);
    EXPECT_NE(find(Kind::lost)->text.find("such a post does not end with"), std::string::npos);
    EXPECT_EQ(find(Kind::ended)->status.code, Code::peer_lost);
    nic_->drop_peer(peer_);
  };
  // The engine would say such a message again, without end.
  expect_lost_by(Code::not_found, [&] { return nic_->post_message(peer_, {registered_.id, 0, 10}, 1); });
  expect_lost_by(Code::invalid_argument, [&] { return nic_->post_write({peer_, {}, 7, 1}); });
}

TEST_F(TcpLies, garbage_and_hellos_for_another_life_make_no_peer) {
  Liar garbage(nic_->address());
  garbage.say(std::string(100, 'g'));
  Liar late(nic_->address());
  late.say(encode(Hello{1, late.life() + 1, "for the one before"}));
  Liar wordy(nic_->address());
  wordy.say(encode(Hello{1, wordy.life(), std::string(max_hello_text_bytes + 1, 'w')}));
  ASSERT_TRUE(until([&] { return garbage.closed() && late.closed() && wordy.closed(); }));
  EXPECT_TRUE(events_.empty());
  join();
}

TEST_F(TcpLies, strangers_that_say_nothing_are_closed_in_time_and_their_number_is_bounded) {
  open({.hello_timeout = std::chrono::hours(1), .most_strangers = 3});
  std::vector<std::unique_ptr<Liar>> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(std::make_unique<Liar>(nic_->address()));
  ASSERT_TRUE(until([&] { return silent[0]->closed() && silent[1]->closed(); }));
  for (int i = 2; i < 5; ++i) EXPECT_FALSE(silent[i]->closed());
  join();

  open({.hello_timeout = std::chrono::milliseconds(5)});
  Liar quiet(nic_->address());
  ASSERT_TRUE(until([&] { return quiet.closed(); }));
}

TEST_F(TcpLies, peers_leave_the_process_some_descriptors_whatever_they_say) {
  const std::uint64_t left = descriptors_left();
  open({.kept_descriptors = left - 10});  // the NIC, the sockets here and a few peers fit
  std::vector<std::unique_ptr<Liar>> liars;
  const auto refused = [&] {
    return std::any_of(liars.begin(), liars.end(), [](const auto& each) { return each->closed(); });
  };
  while (liars.size() < 10 && !refused()) {
    liars.push_back(std::make_unique<Liar>(nic_->address()));
    liars.back()->say_hello();
    for (int i = 0; i < 20; ++i) poll();
  }
  EXPECT_TRUE(until(refused));
  const auto added = nic_->add_peer(nic_->address(), "hello");
  EXPECT_EQ(added.code(), Code::exhausted);

  liars.clear();
  ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
}

TEST_F(TcpLies, a_peer_that_answers_no_hello_is_lost_in_time) {
  open({.hello_timeout = std::chrono::milliseconds(5)});
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress at = read_address(nic_->address())->at;
  reinterpret_cast<sockaddr_in&>(at.storage).sin_port = 0;
  ASSERT_EQ(::bind(listener.get(), at.get(), at.length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const auto added = nic_->add_peer(encode(NicAddress{*SocketAddress::local_of(listener.get()), 1}), "hello");
  ASSERT_TRUE(added);
  ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
  EXPECT_EQ(find(Kind::lost)->status.code, Code::timed_out);
}

TEST_F(TcpLies, a_NIC_that_was_opened_again_at_its_address_is_another_one) {
  auto address = *read_address(nic_->address());
  ++address.life;
  ASSERT_TRUE(nic_->add_peer(encode(address), "hello"));
  ASSERT_TRUE(until([&] { return find(Kind::lost) != nullptr; }));
  EXPECT_NE(find(Kind::lost)->text.find("opened again"), std::string::npos) << find(Kind::lost)->text;
  EXPECT_EQ(find(Kind::joined), nullptr);
}

TEST_F(TcpLies, memory_of_a_GPU_and_addresses_of_others_are_refused_with_a_sentence) {
  EXPECT_FALSE(nic_->info().gpu_memory);
  const auto gpu = nic_->register_memory({1, 10, 0, Access::local});
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.code(), Code::not_supported);
  EXPECT_EQ(nic_->add_peer("verbs:mlx5_0", "").code(), Code::not_supported);
  EXPECT_EQ(nic_->add_peer("tcp:[::1]:80/0123456789abcdef", "").code(), Code::not_supported);
  for (const char* bad :
       {"tcp:", "tcp:127.0.0.1:80", "tcp:127.0.0.1:80/xyz", "tcp:127.0.0.1:0/0123456789abcdef",
        "tcp:some.host:80/0123456789abcdef", "tcp:127.0.0.1:80/0123456789abcdeg"})
    EXPECT_EQ(nic_->add_peer(bad, "").code(), Code::corrupt) << bad;
  EXPECT_EQ(TcpProvider::open("no-such-interface").code(), Code::not_found);
  EXPECT_TRUE(TcpProvider::open("lo"));
}

}  // namespace
}  // namespace headrace::rail::tcp
