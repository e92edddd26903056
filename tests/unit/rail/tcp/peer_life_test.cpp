// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own that is killed, stopped, and started again at random moments, over tcp on
// 127.0.0.1 and 127.0.0.2.
#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "rail/engine.hpp"
#include "rail/tcp/provider.hpp"
#include "support/heap_in_use.hpp"
#include "support/open_descriptors.hpp"
#include "support/page_side.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using test::PageSide;
using test::uniform_side;

const LinkOptions mortal{.chunk_bytes = 32 << 10,
                         .rail_timeout = 400ms,
                         .cancel_timeout = 200ms,
                         .retry_after = 50ms,
                         .heartbeat = 50ms,
                         .silent_after = 400ms};
constexpr std::uint64_t life_bytes = 1 << 20;
constexpr std::uint64_t half_bytes = life_bytes / 2;

struct LifeEvents final : EngineEvents {
  void ended(Link&, Request& request, Status status) override { ends.emplace_back(&request, status); }
  void counted(Link&, const CountedAt&) override {}
  void lost(Link& link, const std::string& why) override {
    lost_links.push_back(&link);
    why_lost = why;
  }
  void sent(Link&, std::uint64_t token, Status status, const std::string& why) override {
    sends.emplace_back(token, status);
    if (!status.ok()) why_sent = why;
  }
  void linked(Link&) override {}

  std::vector<std::pair<Request*, Status>> ends;
  std::vector<std::pair<std::uint64_t, Status>> sends;
  std::vector<Link*> lost_links;
  std::string why_lost, why_sent;
};

/// An engine with its NICs, and memory that peers may write.
struct LifeEngine {
  LifeEngine() : memory(life_bytes) {
    std::vector<std::unique_ptr<Provider>> providers;
    for (const char* at : {"127.0.0.1", "127.0.0.2"}) {
      auto opened = tcp::TcpProvider::open(at);
      if (!opened) return;
      nics.push_back(opened->get());
      providers.push_back(std::move(*opened));
    }
    auto opened = Engine::open(std::move(providers), events, clock, mortal);
    if (!opened) return;
    engine = std::move(*opened);
    region = std::move(*engine->register_memory(
        {reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), {}, Access::peers_read_and_write}));
  }
  void step() {
    if (engine->poll() > 0) return;
    test::wait_for_nics(nics);
  }
  void forget_lost() {
    for (Link* link : std::exchange(events.lost_links, {})) engine->forget(*link);
  }

  LifeEvents events;
  SteadyClock clock;
  std::vector<tcp::TcpProvider*> nics;
  std::unique_ptr<Engine> engine;
  std::vector<std::uint8_t> memory;
  LocalRegion region;
};

void write_all(int fd, const std::string& bytes) {
  if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) ::_exit(2);
}

/// The peer: says where it is and what may be written, and serves until it is killed.
[[noreturn]] void serve(int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  LifeEngine self;
  if (self.engine == nullptr) ::_exit(1);
  for (std::uint64_t i = 0; i < 4; ++i)
    if (!self.engine->post_receive({&self.region, half_bytes + i * (64 << 10), 64 << 10, i, nullptr, true})
             .ok())
      ::_exit(1);
  const std::string address = self.engine->address(), descriptor = Engine::descriptor(self.region);
  write_all(told, std::string(1, static_cast<char>(address.size())) + address +
                      std::string(1, static_cast<char>(descriptor.size())) + descriptor);
  for (;;) {
    self.step();
    self.forget_lost();
  }
}

std::string read_text(int fd) {
  char length = 0;
  if (::read(fd, &length, 1) != 1) return {};
  std::string text(static_cast<unsigned char>(length), '\0');
  for (std::size_t got = 0; got < text.size();) {
    const ssize_t more = ::read(fd, text.data() + got, text.size() - got);
    if (more <= 0) return {};
    got += static_cast<std::size_t>(more);
  }
  return text;
}

class PeerProcess {
 public:
  PeerProcess() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) serve(ends[1]);
    ::close(ends[1]);
    const UniqueFd told(ends[0]);
    address = read_text(told.get());
    descriptor = read_text(told.get());
    EXPECT_FALSE(descriptor.empty());
  }
  ~PeerProcess() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  void signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }

  std::string address, descriptor;

 private:
  pid_t pid_ = 0;
};

/// Writes, reads and messages on one link, each with a deadline that its caller keeps.
class Operations {
 public:
  Operations(LifeEngine& self, const PeerProcess& peer)
      : self_(self), remote_(std::move(*Engine::load(peer.descriptor))) {
    auto link = self.engine->connect(peer.address);
    EXPECT_TRUE(link);
    link_ = *link;
    sides_[0] = uniform_side(&self.region, 0, 4096, 4096);
    sides_[1] = uniform_side(&remote_, 0, 4096, 4096);
    for (int i = 0; i < 2; ++i) views_[i] = sides_[i].view();
    for (int i = 0; i < 6; ++i) {
      headrace_prepare_v1 prepared{};
      prepared.struct_size = sizeof prepared;
      prepared.op = i % 3 == 0 ? HEADRACE_READ : HEADRACE_WRITE;
      prepared.count = 1 + i * 20;
      prepared.bytes = prepared.count * 4096;
      prepared.local = &views_[0];
      prepared.remote = &views_[1];
      requests_.push_back(std::make_unique<Request>(prepared));
    }
  }
  /// All that are not posted.
  void post() {
    for (const auto& request : requests_) {
      if (request->posted()) continue;
      PostPlan plan;
      if (request->is_write()) plan.counted = CountedAt{};
      posted_ += link_->post(*request, plan).ok() ? 1 : 0;
    }
    while (!link_->lost() && sent_ < ended_sends_ + 8)
      sent_ += link_->send({&self_.region, 0, 1 + sent_ * 7919 % 60'000, sent_}).ok() ? 1 : 0;
  }
  void take_ends() {
    for (const auto& [request, status] : std::exchange(self_.events.ends, {})) {
      ++ended_;
      ok_ += status.ok() ? 1 : 0;
      if (status.ok()) continue;
      EXPECT_TRUE(status.code == Code::peer_lost || status.code == Code::canceled) << code_name(status.code);
      EXPECT_NE(request->why().find("127.0.0."), std::string::npos) << request->why();
    }
    ended_sends_ += self_.events.sends.size();
    self_.events.sends.clear();
  }
  /// Their time is over.
  void cancel() {
    const std::uint64_t now_ns = self_.clock.now_ns();
    for (const auto& request : requests_) link_->cancel(*request, now_ns);
    for (std::uint64_t token = 0; token < sent_; ++token) link_->cancel_send(token, now_ns);
  }
  [[nodiscard]] bool all_ended() const { return ended_ == posted_ && ended_sends_ == sent_; }
  [[nodiscard]] std::uint64_t ok() const { return ok_; }
  [[nodiscard]] Link& link() { return *link_; }

 private:
  LifeEngine& self_;
  RemoteRegion remote_;
  Link* link_ = nullptr;
  PageSide sides_[2];
  headrace_side_v1 views_[2]{};
  std::vector<std::unique_ptr<Request>> requests_;
  std::uint64_t posted_ = 0, ended_ = 0, ok_ = 0, sent_ = 0, ended_sends_ = 0;
};

enum class Fate : std::uint8_t { killed, stopped, stopped_for_good, restarted };

/// A link, operations on it, and what becomes of the peer at a random moment.
void live_and_die(LifeEngine& self, std::unique_ptr<PeerProcess>& peer, std::mt19937& random) {
  const auto step_until = [&](Operations& operations, auto holds) {
    const std::uint64_t begin_ns = now_ns();
    while (!holds() && now_ns() - begin_ns < 30'000'000'000U) {
      self.step();
      operations.take_ends();
    }
    return holds();
  };
  if (peer == nullptr) peer = std::make_unique<PeerProcess>();
  Operations operations(self, *peer);
  operations.post();
  const std::uint64_t enough = random() % 40;
  for (std::uint64_t steps = random() % 400; steps > 0 && operations.ok() <= enough; --steps) {
    self.step();
    operations.take_ends();
    operations.post();
  }
  const auto fate = static_cast<Fate>(random() % 4);
  if (fate == Fate::stopped || fate == Fate::stopped_for_good) {
    peer->signal(SIGSTOP);
  } else {
    peer.reset();
  }
  if (fate == Fate::restarted) peer = std::make_unique<PeerProcess>();
  operations.post();
  if (random() % 2 == 0) operations.cancel();
  EXPECT_TRUE(step_until(operations, [&] { return operations.all_ended(); })) << "an operation did not end";
  EXPECT_TRUE(step_until(operations, [&] { return operations.link().lost(); })) << "nobody missed the peer";
  EXPECT_NE(self.events.why_lost.find("127.0.0.2"), std::string::npos) << self.events.why_lost;
  self.forget_lost();
  EXPECT_EQ(self.engine->held(), 0U);
  if (fate == Fate::stopped) peer->signal(SIGCONT);
  if (fate == Fate::stopped_for_good) peer.reset();
}

TEST(RailPeerLife_slow, each_operation_ends_and_nothing_is_kept_at_100_random_moments) {
  std::mt19937 random(11);
  LifeEngine self;
  ASSERT_NE(self.engine, nullptr);
  std::unique_ptr<PeerProcess> peer;
  std::size_t heap = 0, descriptors = 0;
  for (int moment = 0; moment < 120 && !testing::Test::HasFailure(); ++moment) {
    SCOPED_TRACE(moment);
    live_and_die(self, peer, random);
    peer.reset();
    for (int i = 0; i < 100; ++i) self.step();
    if (moment != 19) continue;
    heap = test::heap_in_use();
    descriptors = test::open_descriptors();
  }
  EXPECT_EQ(test::open_descriptors(), descriptors);
  if (test::heap_in_use_is_exact) EXPECT_LE(test::heap_in_use(), heap + 16 * 1024);
}

}  // namespace
}  // namespace headrace::rail
