// SPDX-License-Identifier: Apache-2.0
// A stranger at the socket: whatever it writes there costs it its own link at most. Nothing of it stays, and
// the instance goes on serving others.
#include "backends/shm/backend.hpp"
#include "backends/shm/control_messages.hpp"
#include "host_link/live_table.hpp"
#include "host_link/message_pipe.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <future>
#include <random>

namespace headrace::shm {
namespace {

using host_link::ControlMessage;
using host_link::Goodbye;
using host_link::Hello;
using host_link::LiveTable;
using host_link::MessagePipe;
using host_link::Other;
using host_link::Refusal;
using host_link::Settled;
using host_link::Welcome;

constexpr std::uint64_t ring_bytes = 256 * 1024;
constexpr std::uint64_t message_file_bytes = 65536 + 2 * ring_bytes;  // README.md has the layout

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

UniqueFd memory_file(std::uint64_t bytes, int seals) {
  UniqueFd fd = host_link::create_memory_file("stranger", bytes).value();
  EXPECT_TRUE(host_link::seal_memory_file(fd.get(), seals).ok());
  return fd;
}

/// Speaks to an instance's socket by itself.
class Stranger {
 public:
  explicit Stranger(const std::string& path) : socket_(UnixSocket::connect(path).value()) {}

  /// As far as the socket takes it: the other side may have hung up already.
  bool send(std::string_view packet, std::vector<int> descriptors = {}) {
    return socket_.send(std::as_bytes(std::span(packet)), descriptors).ok();
  }
  bool send(const ControlMessage& message, std::vector<int> descriptors = {}) {
    return send(encode(protocol, message), std::move(descriptors));
  }
  [[nodiscard]] static Hello hello() {
    const static std::uint64_t nonce = 4711;
    return {77, 0, encode_greeting({reinterpret_cast<std::uintptr_t>(&nonce), nonce}), "stranger"};
  }
  [[nodiscard]] std::vector<int> hello_descriptors() const {
    const auto pipe = pipe_->descriptors();
    return {pipe[0], pipe[1], pipe[2], live_->fd()};
  }
  void introduce() {
    send(hello(), hello_descriptors());
    send(Settled{});
  }
  /// Reads what is there; whether it ends.
  [[nodiscard]] bool hung_up() {
    std::array<std::byte, host_link::max_control_bytes> buffer;
    for (;;) {
      const auto received = socket_.receive(buffer);
      if (!received) return received.code() == Code::peer_lost;
    }
  }
  /// What the owner says instead of a welcome, if it has come.
  [[nodiscard]] std::optional<host_link::Refusal> refusal() {
    std::array<std::byte, host_link::max_control_bytes> buffer;
    const auto received = socket_.receive(buffer);
    if (!received) return std::nullopt;
    auto message =
        decode(protocol, std::span(buffer).first(received->bytes), received->descriptors.size()).value();
    auto* const refusal = std::get_if<host_link::Refusal>(&message);
    return refusal != nullptr ? std::optional(std::move(*refusal)) : std::nullopt;
  }
  /// The message file from `offset` on. At 1024, of ring 0 (from the stranger): words 0 tail, 8 head, 9
  /// armed; of ring 1: 16 more each.
  [[nodiscard]] std::uint64_t* words(std::size_t offset = 1024) {
    if (!file_)
      file_ = host_link::Mapping::of_file(pipe_->descriptors()[0], 0, message_file_bytes,
                                          host_link::Mapping::Access::read_write)
                  .value();
    return reinterpret_cast<std::uint64_t*>(file_.data() + offset);
  }

 private:
  UnixSocket socket_;
  std::unique_ptr<MessagePipe> pipe_ = MessagePipe::create(ring_bytes, 1 << 20).value();
  std::unique_ptr<LiveTable> live_ = LiveTable::create().value();
  host_link::Mapping file_;
};

class ShmStranger : public ::testing::Test {
 protected:
  ShmStranger() { EXPECT_TRUE(served()); }

  /// A new stranger at the owner's socket.
  [[nodiscard]] Stranger stranger() const {
    const std::string info = owner->connection_info();
    const auto found = host_link::decode_connection_info(protocol, std::as_bytes(std::span(info)));
    return Stranger(world.runtime_dir() + "/" + found.value().socket_name);
  }
  /// The stranger's link as the owner's host sees it, once it is there.
  [[nodiscard]] test::Link accepted() {
    std::vector<test::HostLink> links;
    EXPECT_TRUE(world.until([&] {
      links = owner->host().accepted_links();
      std::erase_if(links, [](const test::HostLink& link) { return link.peer_name != "stranger"; });
      return !links.empty();
    })) << world.describe();
    return {*owner, links.front().connection, links.front().token};
  }
  [[nodiscard]] testing::AssertionResult dropped(Stranger& who) {
    if (world.until([&] { return who.hung_up(); })) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "it still has its link: " << world.describe();
  }
  /// Whether the other peer's bytes and messages arrive.
  [[nodiscard]] testing::AssertionResult served() {
    test::fill_pattern(owners_memory_.bytes(), ++round_);
    test::Request read(*friend_, HEADRACE_READ, &link_,
                       test::uniform_side(friends_region_.handle(), 0, 4096, 4096),
                       test::uniform_side(remote_.handle(), 0, 4096, 4096), 16);
    const std::string text = std::to_string(round_);
    read.post(text);
    if (const test::PostEnd end = read.wait(); !end.status.ok())
      return testing::AssertionFailure() << end.text;
    if (!test::same_bytes(owners_memory_.bytes(), friends_memory_.bytes()))
      return testing::AssertionFailure() << "other bytes came";
    const bool heard = world.until([&] {
      const auto messages = owner->host().messages();
      return std::any_of(messages.begin(), messages.end(),
                         [&](const test::HostMessage& message) { return message.bytes == text; });
    });
    if (!heard) return testing::AssertionFailure() << "the message did not come: " << world.describe();
    return testing::AssertionSuccess();
  }

  test::World world;

 private:
  static std::unique_ptr<test::Instance> open(test::World& world, const char* name,
                                              std::uint64_t incarnation) {
    return std::make_unique<test::Instance>(
        world, plugin::table<ShmBackend>(), test::Settings{{"handshake_timeout", "1s"}},
        test::PluginHost::Args{.agent_name = name, .incarnation = incarnation});
  }

 protected:
  const std::unique_ptr<test::Instance> owner = open(world, "owner", 1);

 private:
  const std::unique_ptr<test::Instance> friend_ = open(world, "friend", 2);
  const test::Link link_ = friend_->connect(*owner);
  const test::Memory owners_memory_{test::Memory::Kind::shared, 16 * 4096, 1};
  const test::Memory friends_memory_{test::Memory::Kind::plain, 16 * 4096, 2};
  const test::Region owners_region_{*owner, owners_memory_};
  const test::Region friends_region_{*friend_, friends_memory_};
  const test::Remote remote_{link_, owners_region_.facts()};
  std::uint64_t round_ = 0;
};

TEST_F(ShmStranger, that_does_not_begin_as_links_begin_is_dropped) {
  const std::size_t descriptors = open_descriptors();
  const auto tried = [&](const std::string& packet, const auto& choose) {
    Stranger who = stranger();
    who.send(packet, choose(who.hello_descriptors()));
    EXPECT_TRUE(dropped(who)) << testing::PrintToString(packet);
  };
  const auto as_they_are = [](std::vector<int> fds) { return fds; };
  const auto none = [](const std::vector<int>&) { return std::vector<int>(); };
  const std::string hello = encode(protocol, Stranger::hello());
  for (std::size_t bytes = 1; bytes < hello.size(); ++bytes) tried(hello.substr(0, bytes), as_they_are);
  tried(hello + "x", as_they_are);
  tried(hello + std::string(host_link::max_control_bytes, 'x'), as_they_are);
  tried(std::string(100'000, '\xff'), none);
  const std::vector<ControlMessage> first = {Welcome{1, Stranger::hello().greeting, "stranger"},
                                             Refusal{Code::peer_lost, "no"},
                                             Settled{},
                                             Goodbye{},
                                             encode(Unshare{{1, 2, 3}}),
                                             Other{999, "what is this"}};
  for (const ControlMessage& message : first) tried(encode(protocol, message), none);
  tried(encode(protocol, first[0]), [](std::vector<int> fds) { return std::vector<int>{fds[3]}; });
  tried(encode(protocol, encode(Share{{{1, 0, 4096}}})),
        [](std::vector<int> fds) { return std::vector<int>{fds[0]}; });
  host_link::Protocol other = protocol;
  other.version = 2;
  tried(encode(other, Stranger::hello()), as_they_are);
  other = protocol;
  other.control_magic = 0;
  tried(encode(other, Stranger::hello()), as_they_are);
  EXPECT_TRUE(served());
  EXPECT_TRUE(world.until([&] { return open_descriptors() <= descriptors; })) << "descriptors stayed open";
}

TEST_F(ShmStranger, whose_descriptors_are_not_what_they_should_be_is_dropped) {
  const std::size_t descriptors = open_descriptors();
  const auto tried = [&](const char* what, const auto& choose) {
    Stranger who = stranger();
    who.send(Stranger::hello(), choose(who.hello_descriptors()));
    who.send(Settled{});
    EXPECT_TRUE(dropped(who)) << what;
  };
  for (const std::size_t count : {0U, 1U, 3U, 5U, 16U})
    tried("another number of them", [&](std::vector<int> fds) { return fds.resize(count, fds[3]), fds; });
  tried("in another order",
        [](std::vector<int> fds) { return std::rotate(fds.begin(), fds.begin() + 1, fds.end()), fds; });
  const auto with = [&](std::size_t place, int fd) {
    return [=](std::vector<int> fds) { return fds[place] = fd, fds; };
  };
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd unsealed = memory_file(message_file_bytes, 0), small = memory_file(100, seals),
                 zeros = memory_file(message_file_bytes, seals),
                 null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const std::size_t place : {0U, 3U}) {
    tried("an unsealed file", with(place, unsealed.get()));
    tried("a small file", with(place, small.get()));
    tried("a file of zeros", with(place, zeros.get()));
    tried("no memory file", with(place, null.get()));
  }
  for (const std::uint64_t claimed : {std::uint64_t{0}, std::uint64_t{4096}, ring_bytes / 2, ring_bytes + 1,
                                      2 * ring_bytes, std::uint64_t{1} << 63, UINT64_MAX}) {
    const host_link::PipeHeader header{0x50535248, 1, claimed};
    ASSERT_EQ(::pwrite(zeros.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    tried("a ring that is not there", with(0, zeros.get()));
  }
  const UniqueFd counter(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      network(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const std::size_t place : {1U, 2U}) {
    tried("a bell that is a file", with(place, zeros.get()));
    tried("a bell that is an eventfd", with(place, counter.get()));
    tried("a bell that is a socket of the network", with(place, network.get()));
    tried("a bell that is a device", with(place, null.get()));
  }
  EXPECT_TRUE(served());
  EXPECT_TRUE(world.until([&] { return open_descriptors() <= descriptors + 6; }))
      << "descriptors stayed open";
}

TEST_F(ShmStranger, that_breaks_the_rules_of_a_link_loses_it) {
  const std::size_t descriptors = open_descriptors();
  const UniqueFd sealed = memory_file(4096, F_SEAL_SHRINK);
  const std::vector<std::pair<ControlMessage, std::size_t>> wrong = {
      {Stranger::hello(), 4},
      {Welcome{1, Stranger::hello().greeting, "stranger"}, 1},
      {Other{999, ""}, 0},
      {encode(Share{{{1, 0, 4096}, {2, 0, 4096}}}), 1},
      {Other{4, std::string(4, '\0')}, 0},    // nothing shared
      {Other{4, std::string(4, '\xff')}, 0},  // 2^32 - 1 regions in 4 bytes
      {Other{5, std::string(4, '\xff')}, 0},
      {Settled{}, 3}};
  for (const auto& [message, count] : wrong) {
    Stranger who = stranger();
    who.introduce();
    const test::Link link = accepted();
    who.send(message, std::vector<int>(count, sealed.get()));
    EXPECT_TRUE(world.until([&] { return link.lost(); })) << message.index();
    EXPECT_EQ(owner->host().link(link.token())->lost_status.code, Code::corrupt);
  }
  EXPECT_TRUE(served());
  EXPECT_TRUE(world.until([&] { return open_descriptors() <= descriptors + 1; }))
      << "descriptors stayed open";
}

TEST_F(ShmStranger, that_shares_what_cannot_be_mapped_keeps_its_link_and_nothing_is_mapped) {
  Stranger who = stranger();
  who.introduce();
  const test::Link link = accepted();
  const std::size_t before = owner->host().log().size();
  const UniqueFd unsealed = memory_file(4096, 0), sealed = memory_file(4096, F_SEAL_SHRINK);
  who.send(encode(Share{{{1, 0, 4096}}}), {unsealed.get()});
  who.send(encode(Share{{{2, 4095, 2}}}), {sealed.get()});
  who.send(encode(Share{{{3, UINT64_MAX - 1, 4096}}}), {sealed.get()});
  who.send(encode(Share{{{4, 0, UINT64_MAX}}}), {sealed.get()});
  who.send(encode(Share{{{5, 0, 0}}}), {sealed.get()});
  EXPECT_TRUE(world.until([&] { return owner->host().log().size() == before + 5; })) << world.describe();
  EXPECT_FALSE(link.lost());
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, that_writes_nonsense_into_its_rings_loses_its_link) {
  for (const std::uint64_t tail : {std::uint64_t{4}, std::uint64_t{64}, ring_bytes + 8, UINT64_MAX}) {
    Stranger who = stranger();
    who.introduce();
    const test::Link link = accepted();
    who.words(65536)[0] = UINT32_MAX;  // the length of its first message
    who.words()[0] = tail;
    EXPECT_TRUE(world.until([&] { return link.lost(); })) << tail;
    EXPECT_EQ(owner->host().link(link.token())->lost_status.code, Code::corrupt) << tail;
  }
  for (const std::uint64_t head : {std::uint64_t{8}, UINT64_MAX / 2}) {
    Stranger who = stranger();
    who.introduce();
    const test::Link link = accepted();
    who.words()[24] = head;
    EXPECT_EQ(link.notify(0, "hello").code, Code::corrupt);
    EXPECT_TRUE(world.until([&] { return link.lost(); })) << head;
  }
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, whose_bell_is_stuck_keeps_nobody_waiting) {
  Stranger who = stranger();
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd waits(ends[0]), stuck(ends[1]);  // a write without a flag waits until there is room
  while (::send(stuck.get(), "x", 1, MSG_DONTWAIT) == 1) {
  }
  std::vector<int> descriptors = who.hello_descriptors();
  descriptors[1] = stuck.get();
  who.send(Stranger::hello(), descriptors);
  who.send(Settled{});
  const test::Link link = accepted();
  ASSERT_TRUE(world.until([&] { return link.ready(); }));
  ASSERT_EQ(::fcntl(stuck.get(), F_SETFL, 0), 0);  // whatever the owner has set meanwhile
  who.words()[25] = 1;                             // armed: it wants to be rung
  auto rung = std::async(std::launch::async, [&] { return link.notify(0, "wake up"); });
  EXPECT_EQ(rung.wait_for(std::chrono::seconds(20)), std::future_status::ready)
      << "the owner waits for the stranger";
  ASSERT_EQ(::shutdown(waits.get(), SHUT_RDWR), 0);  // lets a thread that waits go
  EXPECT_TRUE(rung.get().ok());
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, that_never_stops_talking_keeps_nobody_waiting) {
  Stranger who = stranger();
  who.introduce();
  const test::Link link = accepted();
  const UniqueFd unsealed = memory_file(4096, 0);
  std::uint32_t said = 0;
  // Its next word is there before the owner is through with the one before, of which it complains.
  owner->host().on_log = [&] {
    said += who.send(encode(Share{{{said, 0, 4096}}}), {unsealed.get()}) ? 1 : 0;
  };
  owner->host().on_log();
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t before = said;
    ASSERT_TRUE(served());
    EXPECT_TRUE(world.until([&] { return said > before; })) << "nobody listens to it any more";
  }
  owner->host().on_log = nullptr;
  EXPECT_FALSE(link.lost());
}

TEST_F(ShmStranger, that_says_too_little_is_given_up) {
  std::vector<Stranger> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(stranger());
    if (i % 2 == 0) many.back().send(Stranger::hello(), many.back().hello_descriptors());
  }
  EXPECT_TRUE(served());
  for (std::size_t i = 0; i < many.size(); ++i) EXPECT_TRUE(dropped(many[i])) << i;
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, who_comes_when_there_are_too_few_descriptors_for_a_link_is_told) {
  // Its socket, its pidfd and the four of its hello.
  for (rlim_t free = 1; free < 6; ++free) {
    Stranger who = stranger();
    who.introduce();
    UniqueFd next(::dup(0));
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
    rlimit tight = old;
    tight.rlim_cur = static_cast<rlim_t>(next.get()) + free;
    next.reset();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    std::optional<host_link::Refusal> refusal;
    (void)world.until([&] { return (refusal = who.refusal()).has_value(); });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
    ASSERT_TRUE(refusal) << free;
    EXPECT_EQ(refusal->code, Code::exhausted) << free;
    EXPECT_NE(refusal->text.find("ulimit -n"), std::string::npos) << refusal->text;
  }
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, who_comes_when_there_are_no_descriptors_is_told_and_the_links_go_on) {
  std::vector<Stranger> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(stranger());
    many.back().introduce();
  }
  const UniqueFd next(::dup(0));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(next.get());  // the next free number is not allowed
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<std::optional<host_link::Refusal>> refusals(many.size());
  for (std::size_t i = 0; i < many.size(); ++i)
    (void)world.until([&] { return (refusals[i] = many[i].refusal()).has_value(); });
  const auto works = served();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_TRUE(works);
  for (const auto& refusal : refusals) {
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->code, Code::exhausted);
    EXPECT_NE(refusal->text.find("owner has no file descriptors left (ulimit -n"), std::string::npos)
        << refusal->text;
  }
  const auto log = owner->host().log();
  const auto lines = std::ranges::count_if(
      log, [](const std::string& line) { return line.find("links refused") != std::string::npos; });
  EXPECT_GE(lines, 1);
  EXPECT_LT(lines, std::ssize(many)) << "it logs each of them";
  Stranger late = stranger();
  late.introduce();
  const test::Link link = accepted();
  EXPECT_TRUE(served());
}

TEST_F(ShmStranger, that_babbles_harms_nobody) {
  std::mt19937_64 random(20);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  const UniqueFd sealed = memory_file(65536, F_SEAL_SHRINK), unsealed = memory_file(4096, 0),
                 null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::size_t descriptors = open_descriptors();
  for (int life = 0; life < 300; ++life) {
    Stranger who = stranger();
    const std::vector<int> ours = who.hello_descriptors();
    const std::array<int, 7> any = {ours[0],      ours[1],        ours[2],   ours[3],
                                    sealed.get(), unsealed.get(), null.get()};
    if (life % 3 != 0) who.introduce();
    bool on = true;
    for (std::uint64_t packets = below(20); packets > 0 && on; --packets) {
      std::string body(below(64), '\0');
      for (char& byte : body) byte = static_cast<char>(below(4) == 0 ? random() : below(3));
      std::vector<int> some(below(5));
      for (int& fd : some) fd = any[below(any.size())];
      on = who.send(Other{static_cast<std::uint16_t>(below(9)), body}, some);
      if (below(4) == 0) who.words()[below(32)] = below(2) == 0 ? random() : below(4096);
      (void)world.progress();
    }
    if (life % 20 == 0) {
      ASSERT_TRUE(served()) << life;
    }
  }
  ASSERT_TRUE(served());
  const auto gone = [&] {
    for (const test::HostLink& link : owner->host().accepted_links())
      if (link.peer_name != "friend" && link.lost)
        test::Link(*owner, link.connection, link.token).disconnect();
    return owner->host().accepted_links().size() == 1 && open_descriptors() <= descriptors;
  };
  EXPECT_TRUE(world.until(gone)) << world.describe();
}

}  // namespace
}  // namespace headrace::shm
