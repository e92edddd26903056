// SPDX-License-Identifier: Apache-2.0
// Requests that read and write a peer's memory while, at random moments, the peer is killed, stopped,
// continued, restarted under its name, closed or made to deregister, and while requests are canceled or
// expire, and their agent deregisters, forgets the peer or closes. Every request ends within its deadline:
// done with every byte in its place, or failed with an error that names the cause. Pages and bytes beside
// those that it moves stay as they are. Nothing is left behind.
//
// All choices of a moment follow from its seed. A failure prints it: HEADRACE_CHAOS_SEED=that begins a run
// with this moment.
#include "peer_greeting.hpp"
#include "peer_process.hpp"

#include "support/heap_in_use.hpp"
#include "support/open_descriptors.hpp"
#include "support/plugin_gpu.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <thread>

namespace headrace::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t slots = 2048;  // places for pages on each side
constexpr std::size_t pages = 1536;  // of a request; the other slots are bystanders
constexpr std::size_t bytes = slots * page_bytes;
constexpr auto deadline = std::chrono::seconds(20);

/// The seed of the first moment; each later one adds 1.
std::uint64_t chaos_seed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("HEADRACE_CHAOS_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::uint64_t{std::random_device()()} << 20;
    std::fprintf(stderr, "HEADRACE_CHAOS_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

// ------------------------------------------------------------------ what happens to a post

enum class Blow {
  kill,
  restart,  ///< killed, and a new peer of its name is known before the post has ended
  stop,
  pause,  ///< stopped and continued
  close_there,
  deregister_there,
  deregister_here,
  forget,
  cancel,
  expire,
  close_here,
};

constexpr std::size_t kinds_of_blows = 11;

struct Rule {
  const char* name;
  std::set<Code> errors;  ///< that a post may end with
  bool ends_posts;        ///< every post fails from some time on
  bool ends_peer;
};

const Rule& rule_of(Blow blow) {
  static const std::array<Rule, kinds_of_blows> rules{{
      {"kill", {Code::peer_lost}, true, true},
      {"restart", {Code::peer_lost}, true, true},
      {"stop", {Code::peer_lost, Code::timed_out}, false, true},  // a post may wait for its handshake
      {"pause", {}, false, false},
      {"close there", {Code::peer_lost}, true, true},
      {"deregister there", {Code::not_found}, true, true},
      {"deregister here", {Code::not_found}, true, false},
      {"forget", {Code::canceled, Code::peer_lost}, true, false},
      {"cancel", {Code::canceled}, false, false},
      {"expire", {Code::timed_out}, false, false},
      {"close here", {Code::canceled, Code::invalid_argument}, true, false},
  }};
  return rules.at(static_cast<std::size_t>(blow));
}

enum class When { in_flight, at_a_time, between_posts };

/// The choices for one moment, in the order in which they are drawn.
struct Moment {
  explicit Moment(std::uint64_t seed) : random(seed), blow(static_cast<Blow>(seed % kinds_of_blows)) {
    // Hit in flight, or perhaps while they connect.
    when = static_cast<When>(random() % 3);
    first = static_cast<int>(random() % 4);
    page = random() % pages;
    pause = std::chrono::microseconds(random() % (blow == Blow::expire ? 3000 : 8000));
    second_pause = std::chrono::microseconds(random() % 20000);
  }

  std::mt19937_64 random;
  Blow blow;
  When when;
  int first;         ///< the post that it is aimed at
  std::size_t page;  ///< whose arrival tells that the post is in flight
  std::chrono::microseconds pause, second_pause;
};

// ------------------------------------------------------------------ memory

/// Memory that is not of the heap, whose growth is measured.
class Buffer {
 public:
  explicit Buffer(std::size_t length)
      : at_(::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        length_(length) {
    if (at_ == MAP_FAILED) std::abort();
  }
  ~Buffer() { ::munmap(at_, length_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {static_cast<std::byte*>(at_), length_}; }

 private:
  void* at_;
  std::size_t length_;
};

/// One side of the requests: its memory, and the slot of page i.
struct Side {
  struct Piece {
    std::span<std::byte> whole, region;  ///< `whole` has bytes beside the region that are not registered
  };
  std::vector<Piece> pieces;  ///< of the same number of slots
  std::vector<std::uint32_t> order;

  /// The region of a slot, and the offset in it.
  [[nodiscard]] std::pair<std::size_t, std::size_t> place(std::uint32_t slot) const {
    const std::size_t each = slots / pieces.size();
    return {slot / each, slot % each * page_bytes};
  }
  [[nodiscard]] std::byte* page(std::size_t i) const {
    const auto [piece, offset] = place(order[i]);
    return pieces[piece].region.data() + offset;
  }
  /// Where page i lies in a copy of all bytes.
  [[nodiscard]] std::size_t page_in_copy(std::size_t i) const {
    const auto [piece, offset] = place(order[i]);
    std::size_t begin = 0;
    for (std::size_t p = 0; p < piece; ++p) begin += pieces[p].whole.size();
    return begin + static_cast<std::size_t>(pieces[piece].region.data() - pieces[piece].whole.data()) +
           offset;
  }
  [[nodiscard]] std::size_t size() const {
    std::size_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.whole.size();
    return sum;
  }
  void fill(std::span<const std::byte> from) const {
    for (const Piece& piece : pieces) {
      std::memcpy(piece.whole.data(), from.data(), piece.whole.size());
      from = from.subspan(piece.whole.size());
    }
  }
  void copy_to(std::span<std::byte> to) const {
    for (const Piece& piece : pieces) {
      std::memcpy(to.data(), piece.whole.data(), piece.whole.size());
      to = to.subspan(piece.whole.size());
    }
  }
};

constexpr std::size_t most_bytes = bytes + 4 * peer_margin_bytes;  // of a side

/// Bytes that are others in every round, at the price of a copy: a random place of a pool twice as long.
class FreshBytes {
 public:
  FreshBytes() : pool_(2 * most_bytes) {
    std::mt19937_64 random(7);
    for (std::size_t i = 0; i + 8 <= pool_.span().size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(pool_.span().data() + i, &word, 8);
    }
  }
  [[nodiscard]] std::span<const std::byte> next(std::mt19937_64& random, std::size_t length) const {
    return pool_.span().subspan(random() % (most_bytes / 8) * 8, length);
  }

 private:
  Buffer pool_;
};

/// What each side held before a post, neighbours included.
struct Before {
  std::span<const std::byte> source, target;
};

::testing::AssertionResult is_as_expected(const Side& side, std::span<const std::byte> expected,
                                          const char* what) {
  for (std::size_t p = 0; p < side.pieces.size(); ++p) {
    const auto now = side.pieces[p].whole;
    if (std::memcmp(now.data(), expected.data(), now.size()) != 0) {
      const auto at = std::mismatch(now.begin(), now.end(), expected.begin()).first - now.begin();
      return ::testing::AssertionFailure()
             << what << " is wrong: byte " << at << " of piece " << p << ", "
             << at - (side.pieces[p].region.data() - now.data()) << " from the begin of its region";
    }
    expected = expected.subspan(now.size());
  }
  return ::testing::AssertionSuccess();
}

/// The two sides of a post, and what they held before it.
struct Move {
  const Side& source;
  const Side& target;
  Before before;
  std::span<std::byte> scratch;  ///< for a copy of a side

  /// A post that is done: every page is in its place, and no other byte has changed.
  [[nodiscard]] ::testing::AssertionResult all_pages_arrived() const {
    std::memcpy(scratch.data(), before.target.data(), before.target.size());
    for (std::size_t i = 0; i < pages; ++i)
      std::memcpy(scratch.data() + target.page_in_copy(i), before.source.data() + source.page_in_copy(i),
                  page_bytes);
    if (auto same = is_as_expected(source, before.source, "the source"); !same) return same;
    return is_as_expected(target, scratch, "the target of a request that is done");
  }

  /// A post that failed: each byte of its pages is an old one or the new one of its place, and no other byte
  /// has changed. `begun`: some are new.
  [[nodiscard]] ::testing::AssertionResult pages_are_old_or_new(bool& begun) const {
    const auto now = scratch.first(target.size());
    target.copy_to(now);
    for (std::size_t i = 0; i < pages; ++i) {
      std::byte* const found = now.data() + target.page_in_copy(i);
      const std::byte* const fresh = before.source.data() + source.page_in_copy(i);
      const std::byte* const old = before.target.data() + target.page_in_copy(i);
      if (std::memcmp(found, old, page_bytes) == 0) continue;
      begun = true;
      if (std::memcmp(found, fresh, page_bytes) != 0)
        for (std::size_t k = 0; k < page_bytes; ++k)
          if (found[k] != fresh[k] && found[k] != old[k])
            return ::testing::AssertionFailure() << "byte " << k << " of page " << i
                                                 << " of a failed request is neither its old nor its new one";
      std::memcpy(found, old, page_bytes);
    }
    if (auto same = is_as_expected(source, before.source, "the source"); !same) return same;
    if (std::memcmp(now.data(), before.target.data(), now.size()) == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "byte " << std::mismatch(now.begin(), now.end(), before.target.begin()).first - now.begin()
           << " of the target is of no page of the failed request, and has changed";
  }
};

// ------------------------------------------------------------------ what a process holds

struct Footprint {
  std::size_t descriptors = 0, threads = 0, mappings = 0;

  static Footprint now() {
    Footprint found;
    found.descriptors = open_descriptors();
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    found.threads = static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:") != std::string::npos) ++found.mappings;
    return found;
  }
  [[nodiscard]] Footprint plus(std::size_t n) const { return {descriptors + n, threads + n, mappings + n}; }
  [[nodiscard]] bool within(const Footprint& most) const {
    return descriptors <= most.descriptors && threads <= most.threads && mappings <= most.mappings;
  }
  friend std::ostream& operator<<(std::ostream& out, const Footprint& f) {
    return out << f.descriptors << " descriptors, " << f.threads << " threads, " << f.mappings << " mappings";
  }
};

// ------------------------------------------------------------------ the test

class PeerChaos : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] std::string backend() const { return GetParam() == "cuda_ipc" ? gpu_backend : GetParam(); }
  [[nodiscard]] bool of_gpu() const { return backend() == gpu_backend; }
  // A stopped peer gives no sign but its silence: that is not to take 5 s a time here.
  [[nodiscard]] std::vector<std::string> options() const {
    if (of_gpu())
      return {std::string("plugin_path=") + gpu_plugin_folder, backend() + ".handshake_timeout=2s"};
    if (GetParam() == "tcp")
      return {"tcp.heartbeat_interval=100ms", "tcp.heartbeat_timeout=2s", "tcp.handshake_timeout=2s"};
    return {"shm.handshake_timeout=2s"};
  }
  [[nodiscard]] Agent open_agent(const std::string& stem) const {
    AgentOptions o;
    o.backends = {backend()};
    for (const std::string& option : options())
      o.options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
    return must(Agent::open(unique_name(stem), o));
  }

  /// At least so many moments, as many of each kind: an agent knows the peers that have died since it was
  /// opened, and is opened anew once in each turn. Memory is measured after the first turn, and at the end.
  void run(int at_least) {
    long_ = at_least >= 100;
    const int moments = in_turns(at_least), warm_up = long_ ? in_turns(1) : 0;
    take_memory();
    here_.emplace(open_agent("survivor"));
    mine_ = register_memory(*here_);
    // Some threads, streams and files of an agent come with the first request.
    Footprint at_start = Footprint::now().plus(4);
    const auto began = Clock::now();
    std::size_t heap = 0;
    // A blow may come after the last byte: then there are more of them, until one has met a post in flight.
    int i = 0;
    for (; i < warm_up + moments || (met_ == 0 && i < warm_up + moments + 100); ++i) {
      if (long_ && i == warm_up) {
        heap = at_rest(at_start);
        at_start = Footprint::now();
      }
      const std::uint64_t seed = chaos_seed() + static_cast<std::uint64_t>(i);
      const Moment moment(seed);
      SCOPED_TRACE("moment " + std::to_string(i) + ", " + rule_of(moment.blow).name +
                   ": HEADRACE_CHAOS_SEED=" + std::to_string(seed) + " begins with it");
      happen(moment);
      if (HasFailure()) return;
    }
    const std::size_t heap_at_end = at_rest(at_start);
    if (long_ && heap_in_use_is_exact) {
      EXPECT_LE(heap_at_end, heap + heap / 20) << "the heap has grown from " << heap << " to " << heap_at_end;
    }
    for (const Op op : {Op::read, Op::write}) EXPECT_GT(done_[op], 0);
    EXPECT_GT(met_, 0) << "no blow came while a post was in flight";
    report(i, Clock::now() - began, heap, heap_at_end);
  }

 private:
  static int in_turns(int moments) {
    return (moments + kinds_of_blows - 1) / kinds_of_blows * kinds_of_blows;
  }

  void take_memory() {
    const std::size_t length = bytes + 2 * peer_margin_bytes;
    if (of_gpu())
      gpu_memory_.emplace(length);
    else
      host_memory_.emplace(length);
    const auto whole = of_gpu() ? gpu_memory_->bytes() : host_memory_->span();
    local_.pieces = {{whole, whole.subspan(peer_margin_bytes, bytes)}};
  }

  RegionId register_memory(Agent& agent) const {
    const auto memory = local_.pieces[0].region;
    return must(agent.register_memory({.address = memory.data(),
                                       .length_bytes = memory.size(),
                                       .kind = of_gpu() ? MemoryKind::vram : MemoryKind::dram,
                                       .device = of_gpu() ? 0 : -1}))
        .id;
  }

  std::unique_ptr<PeerProcess> start_peer(std::uint64_t seed) {
    auto peer = std::make_unique<PeerProcess>(name_, backend(), bytes, seed, options());
    EXPECT_FALSE(peer->metadata().empty()) << "the peer did not start";
    must(here_->import_metadata(peer->metadata()));
    return peer;
  }

  void use_memory_of_peer() {
    remote_.pieces.clear();
    for (std::size_t i = 0; i < 2; ++i)
      remote_.pieces.push_back({peer_->whole_memory()[i], peer_->memory()[i]});
  }

  /// A long run, pages that are neighbours in part, or single pages.
  static std::vector<std::uint32_t> choose_pages(std::mt19937_64& random, std::uint64_t shape) {
    std::vector<std::uint32_t> all(slots);
    std::iota(all.begin(), all.end(), 0U);
    if (shape == 0)
      std::rotate(all.begin(), all.begin() + static_cast<long>(random() % (slots - pages)), all.end());
    if (shape != 0) std::shuffle(all.begin(), all.end(), random);
    all.resize(pages);
    if (shape == 1) std::ranges::sort(all);
    return all;
  }

  std::map<Op, Request> requests(Agent& agent, RegionId mine) const {
    const auto regions = must(agent.peer_regions(name_));
    EXPECT_EQ(regions.size(), remote_.pieces.size());
    std::vector<Page> near, far;
    for (std::size_t i = 0; i < pages; ++i) {
      near.push_back({mine.value, local_.place(local_.order[i]).second, page_bytes});
      const auto [piece, offset] = remote_.place(remote_.order[i]);
      far.push_back({regions[piece].id.value, offset, page_bytes});
    }
    const PageList local = must(agent.prepare(near)), remote = must(agent.prepare(name_, far));
    const RequestOptions limit{.backends = {}, .timeout = deadline};
    return {{Op::read, must(agent.make_request(Op::read, {local, remote}, limit))},
            {Op::write, must(agent.make_request(Op::write, {local, remote}, limit))}};
  }

  /// Fills both sides with fresh bytes, so that no byte of the target is right before the post.
  Move fill(Op op, std::mt19937_64& random) {
    const auto ours = fresh_.next(random, local_.size()), theirs = fresh_.next(random, remote_.size());
    local_.fill(ours);
    remote_.fill(theirs);
    if (op == Op::read) return {remote_, local_, {theirs, ours}, scratch_.span()};
    return {local_, remote_, {ours, theirs}, scratch_.span()};
  }

  /// One moment: posts until the blow has told, and compares every byte after each post.
  void happen(Moment moment) {
    if (!peer_) peer_ = start_peer(moment.random());
    use_memory_of_peer();
    local_.order = choose_pages(moment.random, moment.random() % 3);
    remote_.order = choose_pages(moment.random, moment.random() % 3);
    std::optional<Agent> leaver;
    if (moment.blow == Blow::close_here) {
      leaver.emplace(open_agent("leaver"));
      must(leaver->import_metadata(peer_->metadata()));
    }
    Agent& agent = leaver ? *leaver : *here_;
    const RegionId mine = leaver ? register_memory(agent) : mine_;
    {
      auto both = requests(agent, mine);
      post_until_it_tells(moment, agent, both);
    }
    if (::testing::Test::HasFailure()) return;
    leaver.reset();
    if (rule_of(moment.blow).ends_peer)
      end_peer(moment.blow);
    else
      go_on(moment);
  }

  struct LastPost {
    Status status;
    Op op = Op::read;
    Before before;
  };

  void post_until_it_tells(Moment& moment, Agent& agent, std::map<Op, Request>& both) {
    const Rule& rule = rule_of(moment.blow);
    std::atomic<bool> struck = false;
    std::optional<Striker> striker;
    std::vector<std::jthread> timers;
    int after = 0;  // posts after the blow
    const auto until = Clock::now() + 3 * deadline;
    for (int post = 0;; ++post) {
      const Op op = static_cast<Op>(moment.random() % 2);
      Request& request = both.at(op);
      const Move move = fill(op, moment.random);
      const auto strike = [this, &moment, &agent, &both, &request, &struck] {
        for (const auto& [each, one] : both)
          if (one.state() == RequestState::posted) met_in_flight_ = true;
        strike_now(moment, agent, request);
        struck = true;
      };
      const bool aimed = post == moment.first;
      if (aimed && moment.when == When::between_posts) strike();
      if (aimed && moment.when == When::at_a_time) timers.push_back(later(moment.pause, strike));
      if (aimed && moment.when == When::in_flight && !of_gpu())
        striker.emplace(request, move.target.page(moment.page),
                        move.before.source.data() + move.source.page_in_copy(moment.page), strike);
      if (aimed && moment.when == When::in_flight && of_gpu()) {
        plugin_gpu().hold();
        timers.push_back(later(moment.pause, strike));
        timers.push_back(later(moment.pause + moment.second_pause, plugin_gpu().release));
      }
      if (struck) ++after;
      PostOptions options;
      if (aimed && moment.blow == Blow::expire) options.timeout = moment.pause;
      Status status = request.post(options);
      if (status.ok()) status = request.wait(deadline + std::chrono::seconds(3));
      EXPECT_NE(request.state(), RequestState::posted) << "a request outlived its deadline";
      last_ = {status, op, move.before};
      check(rule, request, move);
      if (aimed) striker.reset();
      if (Clock::now() > until) ADD_FAILURE() << "the blow did not tell";
      if (HasFailure()) break;
      if (rule.ends_posts ? !status.ok() : (after == (moment.blow == Blow::stop ? 8 : 2))) break;
      if (moment.blow == Blow::stop && !status.ok()) break;
    }
    timers.clear();
    if (met_in_flight_.exchange(false)) ++met_;
    local_.copy_to(left_here_.span());
    remote_.copy_to(left_there_.span());
  }

  static std::jthread later(std::chrono::microseconds pause, std::function<void()> act) {
    return std::jthread([pause, act = std::move(act)] {
      std::this_thread::sleep_for(pause);
      act();
    });
  }

  /// On a thread beside that which posts.
  void strike_now(Moment& moment, Agent& agent, Request& request) {
    switch (moment.blow) {
      case Blow::kill:
        return peer_->signal(SIGKILL);
      case Blow::restart:
        peer_->signal(SIGKILL);
        successor_ = start_peer(1);
        return;
      case Blow::stop:
        return peer_->signal(SIGSTOP);
      case Blow::pause:
        peer_->signal(SIGSTOP);
        std::this_thread::sleep_for(moment.second_pause);
        return peer_->signal(SIGCONT);
      case Blow::close_there:
        return peer_->give(PeerOrder::close);
      case Blow::deregister_there:
        return peer_->give(moment.page % 2 == 0 ? PeerOrder::deregister_first : PeerOrder::deregister_second);
      case Blow::deregister_here:
        return must(agent.deregister(mine_, deadline));
      case Blow::forget:
        return must(agent.forget(name_));
      case Blow::cancel:
        return request.cancel();
      case Blow::expire:
        return;
      case Blow::close_here:
        return agent.close();
    }
  }

  /// After the end of a post.
  void check(const Rule& rule, const Request& request, const Move& move) {
    const Status status = last_.status;
    const char* const op = last_.op == Op::read ? "read" : "write";
    if (status.ok()) {
      ++done_[last_.op];
      EXPECT_TRUE(move.all_pages_arrived()) << op;
      return;
    }
    const std::string text = request.error().message;
    ++failed_[std::string(code_name(status.code))];
    bool begun = false;
    EXPECT_TRUE(move.pages_are_old_or_new(begun)) << op << ": " << text;
    half_done_ += begun ? 1 : 0;
    EXPECT_TRUE(rule.errors.contains(status.code)) << op << ": " << code_name(status.code) << ": " << text;
    if (status.code == Code::peer_lost || status.code == Code::timed_out) {
      EXPECT_NE(text.find(name_), std::string::npos) << code_name(status.code) << ": " << text;
    }
  }

  /// The peer is gone, or is made to go. Nothing of the last post moves after its end.
  void end_peer(Blow blow) {
    if (blow == Blow::stop) {
      peer_->signal(SIGCONT);
      peer_->give(PeerOrder::close);
    }
    if (blow != Blow::kill && blow != Blow::restart) {
      EXPECT_TRUE(peer_->obeyed()) << "the peer's process has ended";
    }
    peer_->kill();
    EXPECT_TRUE(
        is_as_expected(local_, left_here_.span(), "this agent's memory after the end of its last request"));
    // Over tcp a process that was stopped inside of a system call places what this call takes.
    if (GetParam() == "tcp" && blow == Blow::stop && !last_.status.ok() && last_.op == Op::write) {
      bool ignored = false;
      EXPECT_TRUE((Move{local_, remote_, last_.before, scratch_.span()}.pages_are_old_or_new(ignored)));
    } else {
      EXPECT_TRUE(
          is_as_expected(remote_, left_there_.span(), "the peer's memory after the end of the last request"));
    }
    peer_ = std::move(successor_);
  }

  /// The peer is there as before: both ways are open.
  void go_on(Moment& moment) {
    if (moment.blow == Blow::deregister_here) mine_ = register_memory(*here_);
    if (moment.blow == Blow::forget) must(here_->import_metadata(peer_->metadata()));
    auto both = requests(*here_, mine_);
    for (auto& [op, request] : both) {
      const Move move = fill(op, moment.random);
      Status status = request.post();
      if (status.ok()) status = request.wait(deadline + std::chrono::seconds(3));
      last_ = {status, op, move.before};
      EXPECT_TRUE(status.ok()) << "after the blow: " << request.error().message;
      check(rule_of(moment.blow), request, move);
    }
  }

  /// Without a peer this process holds no more than `most`. Returns the bytes of its heap.
  std::size_t at_rest(const Footprint& most) {
    peer_.reset();
    if (!here_->peers().empty()) must(here_->forget(name_));
    // Links of the dead are closed by the thread that drives, soon after.
    for (const auto until = Clock::now() + deadline; !Footprint::now().within(most) && Clock::now() < until;)
      (void)here_->wait_notification(std::chrono::milliseconds(10));
    EXPECT_TRUE(Footprint::now().within(most)) << Footprint::now() << ", and not " << most;
    // A post that has ended leaves its timer, some hundred bytes, until its deadline.
    for (const auto until = Clock::now() + deadline; long_ && Clock::now() < until;)
      (void)here_->wait_notification(std::chrono::milliseconds(100));
    return heap_in_use() - events_bytes();
  }

  /// Of the last events, of which an agent keeps a fixed number: it has few of them at first.
  [[nodiscard]] std::size_t events_bytes() const {
    constexpr std::size_t beside_a_text = 32;  // what the sanitizer's allocator counts besides
    std::size_t sum = 0;
    for (const EventSnapshot& event : here_->telemetry().events)
      sum += sizeof event + event.text.size() + beside_a_text;
    return sum;
  }

  void report(int moments, Clock::duration took, std::size_t heap, std::size_t heap_at_end) const {
    int posts = done_.at(Op::read) + done_.at(Op::write);
    std::string failures;
    for (const auto& [name, count] : failed_) {
      posts += count;
      failures += ", " + std::to_string(count) + " " + name;
    }
    std::printf(
        "%s: %d moments in %.1f s, %d posts: %d reads and %d writes done%s (%d of the failed half done); "
        "%d moments met a post in flight; heap %zu to %zu bytes\n",
        GetParam().c_str(), moments, std::chrono::duration<double>(took).count(), posts, done_.at(Op::read),
        done_.at(Op::write), failures.c_str(), half_done_, met_, heap, heap_at_end);
  }

  const std::string name_ = unique_name("victim");
  bool long_ = false;  // many moments: then what posts leave behind is more than the slack
  std::optional<Buffer> host_memory_;
  std::optional<GpuBytes> gpu_memory_;
  const FreshBytes fresh_;
  const Buffer scratch_{most_bytes}, left_here_{most_bytes}, left_there_{most_bytes};
  Side local_, remote_;
  std::optional<Agent> here_;
  RegionId mine_;
  std::unique_ptr<PeerProcess> peer_, successor_;
  LastPost last_;
  std::atomic<bool> met_in_flight_ = false;
  std::map<Op, int> done_;
  std::map<std::string, int> failed_;
  int half_done_ = 0, met_ = 0;
};

TEST_P(PeerChaos, a_notification_to_a_dead_peer_is_refused_with_its_name) {
  Agent here = open_agent("survivor");
  const std::string name = unique_name("victim");
  PeerProcess peer(name, backend(), bytes, 1, options());
  must(here.import_metadata(peer.metadata()));
  must(here.notify(name, "are you there?"));
  must(here.connect(name, deadline));
  peer.signal(SIGKILL);
  peer.end();
  Result<void> told;
  for (const auto began = Clock::now(); told.ok() && Clock::now() - began < deadline;) {
    told = here.notify(name, "still there?");
    (void)here.wait_notification(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(told.code(), Code::peer_lost);
  EXPECT_NE(told.error().message.find(name), std::string::npos) << told.error().message;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(here.notify(name, "and now?").code(), Code::peer_lost)
        << "not taken by a connection that will never be";
    (void)here.wait_notification(std::chrono::milliseconds(1));
  }
}

TEST_P(PeerChaos, no_byte_is_lost_or_misplaced_at_random_moments) { run(11); }
TEST_P(PeerChaos, no_byte_is_lost_or_misplaced_at_a_thousand_random_moments_slow) { run(1000); }

INSTANTIATE_TEST_SUITE_P(Backends, PeerChaos, ::testing::Values("shm", "tcp", "cuda_ipc"),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace headrace::test
