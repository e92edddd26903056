// SPDX-License-Identifier: Apache-2.0
// A peer of this host that lies: over its socket, in the ring, and about where its bytes are.
#include "host_link/memory_file.hpp"
#include "rail/shm/address.hpp"
#include "rail/shm/pipe.hpp"
#include "rail/stream/fetch.hpp"
#include "rail/stream/frame.hpp"
#include "rail/stream/hello.hpp"
#include "unit/rail/shm/two_nics.hpp"

#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <span>

namespace headrace::rail::shm {
namespace {

using host_link::RingControl;
using stream::encode;
using stream::FrameHeader;
using stream::FrameType;
using stream::Range;
using stream::Source;
using test_nics::Kind;
using test_nics::NearNic;

constexpr std::string_view packet = "HRFABRIC pipe 1";

/// A process of this host that says what a test wants.
class NearLiar {
 public:
  NearLiar(const std::string& folder, const std::string& address) : life_(read_near_address(address)->life) {
    auto socket = UnixSocket::connect(fmt::format("{}/fabric-{:016x}.sock", folder, life_));
    EXPECT_TRUE(socket) << socket.error().message;
    socket_.emplace(std::move(*socket));
  }
  void send(std::string_view bytes, std::vector<int> descriptors) {
    EXPECT_TRUE(socket_->send(std::as_bytes(std::span(bytes)), descriptors));
  }
  /// Its rings, and its hello in them.
  void join() {
    auto made = Pipe::create(stream_ring_bytes);
    ASSERT_TRUE(made);
    file_ = std::move(made->to_send[0]);
    send(packet, {file_.get(), made->to_send[1].get(), made->to_send[2].get()});
    pipe_.emplace(std::move(made->pipe));
    say(encode(stream::Hello{1, life_, "liar"}));
  }
  void say(const std::string& bytes) {
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    EXPECT_EQ(pipe_->writer.write({&piece, 1}), bytes.size());
    pipe_->ring();
  }
  /// The control words of a ring: 0: the one that it writes.
  void with_control(int ring, const std::function<void(RingControl&)>& body) const {
    auto head =
        host_link::Mapping::of_file(file_.get(), 0, 64 * 1024, host_link::Mapping::Access::read_write);
    ASSERT_TRUE(head);
    body(reinterpret_cast<RingControl*>(head->data() + 1024)[ring]);
    pipe_->ring();
  }
  /// The last frame that came, if it is one without payload.
  FrameHeader last_frame() {
    std::array<char, 4096> some;
    const iovec place{some.data(), some.size()};
    heard_.append(some.data(), pipe_->reader.read({&place, 1}).value_or(0));
    FrameHeader header;
    if (heard_.size() >= stream::hello_head_bytes + stream::header_bytes)
      std::memcpy(&header, heard_.data() + heard_.size() - stream::header_bytes, stream::header_bytes);
    return header;
  }
  bool closed() {
    std::array<std::byte, 16> some;
    const auto came = socket_->receive(some);
    return !came && came.code() != Code::would_block;
  }
  Pipe& pipe() { return *pipe_; }

 private:
  std::uint64_t life_;
  std::optional<UnixSocket> socket_;
  std::optional<Pipe> pipe_;
  UniqueFd file_;
  std::string heard_;
};

class ShmLies : public testing::Test {
 protected:
  std::unique_ptr<NearLiar> stranger() {
    return std::make_unique<NearLiar>(folder_.path(), nic_.nic->address());
  }
  std::unique_ptr<NearLiar> join() {
    auto liar = stranger();
    liar->join();
    EXPECT_TRUE(nic_.until([&] { return nic_.find(Kind::joined) != nullptr; }));
    return liar;
  }
  void expect_lost(Code code, const std::string& part) {
    SCOPED_TRACE(part);
    ASSERT_TRUE(nic_.until([&] { return nic_.find(Kind::lost) != nullptr; }));
    EXPECT_EQ(nic_.find(Kind::lost)->status.code, code);
    EXPECT_NE(nic_.find(Kind::lost)->text.find(part), std::string::npos) << nic_.find(Kind::lost)->text;
    EXPECT_EQ(nic_.find(Kind::marked), nullptr);
    nic_.nic->drop_peer(nic_.find(Kind::joined)->peer);
    EXPECT_EQ(nic_.memory, std::vector<char>(nic_.memory.size()));
    nic_.events.clear();
  }
  std::string fetch(const std::vector<Range>& ranges, const std::vector<Source>& sources) {
    const std::string places = encode(sources);
    return encode({.type = FrameType::fetch,
                   .flags = stream::flag_mark,
                   .post = ++posts_,
                   .payload = places.size(),
                   .value = 9},
                  ranges) +
           places;
  }
  [[nodiscard]] Range target(std::uint64_t bytes) const {
    return {static_cast<std::uint32_t>(nic_.registered.id), 0, bytes};
  }
  static Source source(const void* at, std::uint64_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(at), bytes};
  }

  test::TemporaryFolder folder_;
  NearNic nic_{folder_.path(), 10'000};
  std::uint64_t posts_ = 0;
};

TEST_F(ShmLies, what_is_no_pipe_makes_no_peer) {
  auto made = Pipe::create(stream_ring_bytes);
  ASSERT_TRUE(made);
  const std::vector<int> right{made->to_send[0].get(), made->to_send[1].get(), made->to_send[2].get()};
  const UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), 64 * 1024 + 2 * stream_ring_bytes), 0);
  auto small = host_link::create_memory_file("small", 4096);
  ASSERT_TRUE(host_link::seal_memory_file(small->get(), F_SEAL_SHRINK | F_SEAL_GROW));
  std::vector<std::unique_ptr<NearLiar>> liars;
  const auto say = [&](std::string_view bytes, const std::vector<int>& descriptors) {
    liars.push_back(stranger());
    liars.back()->send(bytes, descriptors);
  };
  say("something else!", right);
  say("HRFABRIC", right);
  say(packet, {});
  say(packet, {right[0], right[1]});
  say(packet, {right[1], right[0], right[2]});
  say(packet, {right[0], right[0], right[2]});
  say(packet, {loose.get(), right[1], right[2]});
  say(packet, {small->get(), right[1], right[2]});
  for (const auto& liar : liars) EXPECT_TRUE(nic_.until([&] { return liar->closed(); }));
  EXPECT_TRUE(nic_.events.empty());
  join();
}

TEST_F(ShmLies, positions_that_cannot_be_end_the_peer) {
  auto liar = join();
  liar->with_control(0, [](RingControl& ring) { ring.tail += stream_ring_bytes + 1; });
  expect_lost(Code::corrupt, "written more than the ring holds");

  liar = join();
  liar->with_control(0, [](RingControl& ring) { ring.tail -= 1; });
  expect_lost(Code::corrupt, "written more than the ring holds");

  liar = join();
  liar->with_control(1, [](RingControl& ring) { ring.head += 1000; });
  ASSERT_TRUE(nic_.nic->post_message(nic_.find(Kind::joined)->peer, {nic_.registered.id, 0, 10}, 1).ok());
  expect_lost(Code::corrupt, "has read more than was written");
}

TEST_F(ShmLies, a_second_packet_ends_the_peer) {
  auto liar = join();
  liar->send("more", {});
  expect_lost(Code::peer_lost, "ended or closed");
}

TEST_F(ShmLies, fetches_of_places_that_do_not_fit_end_the_peer) {
  const std::vector<char> bytes(10'000);
  auto liar = join();
  liar->say(fetch({target(100)}, {source(bytes.data(), 99)}));
  expect_lost(Code::corrupt, "have no place");
  liar = join();
  liar->say(fetch({target(100)}, {source(bytes.data(), 50), source(bytes.data(), 51)}));
  expect_lost(Code::corrupt, "is among them");
  liar = join();
  liar->say(fetch({target(100)}, {source(bytes.data(), 100), source(bytes.data(), 0)}));
  expect_lost(Code::corrupt, "is among them");
  liar = join();
  liar->say(fetch({}, {source(bytes.data(), 100)}));
  expect_lost(Code::corrupt, "fetches nothing");
  liar = join();
  liar->say(encode({.type = FrameType::fetch, .post = 1, .payload = 17}, {target(100)}));
  expect_lost(Code::corrupt, "a part of one");
}

TEST_F(ShmLies, a_fetch_from_memory_that_is_not_there_ends_the_peer) {
  auto liar = join();
  liar->say(fetch({target(100)}, {{8, 100}}));
  expect_lost(Code::peer_lost, "unmapped memory");
}

TEST_F(ShmLies, a_fetch_into_memory_that_is_not_registered_is_refused_and_the_peer_lives) {
  const std::vector<char> bytes(10'000, 'x');
  auto liar = join();
  Range outside = target(20);
  outside.offset = nic_.memory.size() - 19;
  Range unknown = target(20);
  unknown.region += 7;
  for (const Range& range : {outside, unknown}) {
    liar->say(fetch({target(10), range}, {source(bytes.data(), 30)}));
    ASSERT_TRUE(nic_.until([&] { return liar->last_frame().post == posts_; }));
    EXPECT_EQ(liar->last_frame().value, stream::code_value(Code::not_found));
  }
  EXPECT_EQ(nic_.find(Kind::marked), nullptr);
  EXPECT_EQ(nic_.find(Kind::lost), nullptr);
  EXPECT_EQ(nic_.memory, std::vector<char>(nic_.memory.size()));
}

TEST_F(ShmLies, places_that_no_read_asked_for_and_answers_to_no_loan_end_the_peer) {
  const std::vector<char> bytes(10'000);
  const std::string places = encode(std::vector<Source>{source(bytes.data(), 100)});
  const std::string lend = encode({.type = FrameType::lend, .post = 1, .payload = places.size()}) + places;
  auto liar = join();
  liar->say(lend);
  expect_lost(Code::corrupt, "no read waits for these places");
  liar = join();
  liar->say(encode({.type = FrameType::returned, .post = 1}));
  expect_lost(Code::corrupt, "nothing was lent");
  liar = join();
  liar->say(encode({.type = FrameType::returned, .post = 1, .value = 2}));
  expect_lost(Code::corrupt, "returned with code 2");
  liar = join();
  liar->say(encode({.type = FrameType::lend, .post = 1}));
  expect_lost(Code::corrupt, "names no place");
}

TEST_F(ShmLies, a_read_that_ends_while_it_is_copied_or_gets_other_lengths_ends_the_peer) {
  const std::vector<char> bytes(10'000);
  const auto read_from_liar = [&] {
    const PeerId peer = nic_.find(Kind::joined)->peer;
    auto loaded = nic_.nic->load_memory(peer, encode(stream::Key{1, 77, 10'000}));
    ASSERT_TRUE(loaded) << loaded.error().message;
    const std::array moves{Move{nic_.registered.id, *loaded, 0, 0, 100}};
    ASSERT_TRUE(nic_.nic->post_read({peer, moves, 4}).ok());
    nic_.poll();
  };
  const auto lend = [&](std::uint64_t length) {
    const std::string places = encode(std::vector<Source>{source(bytes.data(), length)});
    return encode({.type = FrameType::lend, .post = 1, .payload = places.size()}) + places;
  };
  auto liar = join();
  read_from_liar();
  liar->say(lend(101));
  expect_lost(Code::corrupt, "is among them");
  liar = join();
  read_from_liar();
  liar->say(lend(100) + encode({.type = FrameType::end, .post = 1}));
  expect_lost(Code::corrupt, "while its bytes are copied");
}

TEST_F(ShmLies, bytes_of_a_writer_that_has_closed_are_not_marked) {
  const std::vector<char> bytes(10'000, 'x');
  auto liar = join();
  liar->say(fetch({target(10'000)}, {source(bytes.data(), 10'000)}));
  liar->pipe().own().closed = 1;
  ASSERT_TRUE(nic_.until([&] { return nic_.find(Kind::lost) != nullptr; }));
  EXPECT_EQ(nic_.find(Kind::marked), nullptr);
}

TEST_F(ShmLies, a_liar_ends_alone) {
  NearNic honest(folder_.path(), 10'000);
  const PeerId peer = connect(honest, nic_);
  nic_.events.clear();
  auto liar = join();
  liar->say(std::string(100, 'g'));
  expect_lost(Code::corrupt, "frame");
  auto loaded = honest.nic->load_memory(peer, nic_.registered.key);
  ASSERT_TRUE(loaded);
  const std::array moves{Move{honest.registered.id, *loaded, 0, 0, 10}};
  ASSERT_TRUE(honest.nic->post_write({peer, moves, 1, 1}).ok());
  EXPECT_TRUE(honest.until([&] {
    nic_.poll();
    return honest.find(Kind::ended) != nullptr;
  }));
  EXPECT_TRUE(honest.find(Kind::ended)->status.ok());
}

TEST_F(ShmLies, addresses_of_others_are_refused_with_a_sentence) {
  const auto code_of = [&](std::string_view address) { return nic_.nic->add_peer(address, "").code(); };
  EXPECT_EQ(code_of("tcp:127.0.0.1:80/0123456789abcdef"), Code::not_supported);
  EXPECT_EQ(code_of(encode(NearAddress{this_host() + 1, 5})), Code::not_supported);
  EXPECT_EQ(code_of(encode(NearAddress{this_host(), 5})), Code::not_supported);
  for (const char* bad : {"shm:", "shm:0123456789abcdef", "shm:0123456789abcdef/0123456789abcdeg",
                          "shm:0123456789abcdef/0123456789abcdef0", "shm:0123456789abcdef:0123456789abcdef"})
    EXPECT_EQ(code_of(bad), Code::corrupt) << bad;
  const auto gpu = nic_.nic->register_memory({1, 10, 0, Access::local});
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.code(), Code::not_supported);
}

}  // namespace
}  // namespace headrace::rail::shm
