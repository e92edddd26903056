// SPDX-License-Identifier: Apache-2.0
// contract_peer BACKEND NAME INCARNATION RUNTIME_DIR [--vram] [OPTION=VALUE ...]: an agent of its own process
// that does what a test says over the socket at descriptor 3. Answers "ok ..." or "error SENTENCE".
#include "base/hash.hpp"
#include "contract/peer_protocol.hpp"
#include "support/fake_gpus.hpp"
#include "support/plugin_instance.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <algorithm>

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <optional>

namespace headrace::contract {
namespace {

using namespace headrace::test;  // NOLINT: the program is written in the harness's words

/// Whole pages of the system that fault while this object lives, as if they were unmapped. No other mapping
/// gets their place.
class LostPages {
 public:
  explicit LostPages(std::span<std::byte> bytes) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page * page;
    at_ = reinterpret_cast<void*>(begin);
    length_ = end - begin;
    if (::mprotect(at_, length_, PROT_NONE) != 0) throw std::runtime_error("mprotect fails");
  }
  ~LostPages() { ::mprotect(at_, length_, PROT_READ | PROT_WRITE); }
  LostPages(const LostPages&) = delete;
  LostPages& operator=(const LostPages&) = delete;

 private:
  void* at_ = nullptr;
  std::size_t length_ = 0;
};

/// Faults of this process that come to a handler of its own, as programs have one.
class OwnFaults {
 public:
  static void handle() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      ++count;
      siglongjmp(after, 1);
    };
    ::sigaction(SIGSEGV, &action, nullptr);
  }
  /// How many came to the handler, after one more.
  static int count_another() {
    if (sigsetjmp(after, 1) == 0) fault();
    return count;
  }

 private:
  __attribute__((noinline, no_sanitize("address", "thread"))) static void fault() {
    void* const hole = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)*static_cast<const volatile char*>(hole);
  }
  static inline sigjmp_buf after;
  static inline int count = 0;
};

struct Owned {
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Region> region;
  std::unique_ptr<LostPages> lost;
};

class Peer {
 public:
  Peer(const std::string& backend, const std::string& name, std::uint64_t incarnation,
       const std::string& runtime_dir, const Settings& settings)
      : world_(runtime_dir),
        instance_(
            std::make_unique<Instance>(world_, load_plugin(backend), settings,
                                       PluginHost::Args{.agent_name = name, .incarnation = incarnation})) {
    instance_->host().on_received = [this](const HostMessage&) {
      const std::scoped_lock lock(mutex_);
      seen_.push_back(watched_.empty() ? 0 : hash64(watched_));
    };
    world_.start_driver();
  }
  ~Peer() {
    try {
      end();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "contract_peer: %s\n", e.what());
    }
  }

  /// Gives everything back. Throws if the backend broke a rule on the way.
  void end() {
    world_.stop_driver();
    links_.clear();
    regions_.clear();
    if (!instance_) return;
    instance_->destroy();
    std::string rules;
    for (const std::string& rule : instance_->host().broken_rules()) rules += rule + "; ";
    instance_.reset();
    if (!rules.empty()) throw std::runtime_error("broken rules: " + rules);
  }

  std::string answer(const std::vector<std::string>& words) {
    const auto number = [&](std::size_t i) { return std::stoull(words.at(i)); };
    const std::string& verb = words.at(0);
    if (verb == "info") return to_hex(instance_->connection_info());
    if (verb == "region") {  // KIND LENGTH SEED [host]
      std::optional<FromTheHost> from_the_host;
      if (words.size() > 4) from_the_host.emplace();
      Owned owned;
      owned.memory =
          std::make_unique<Memory>(words.at(1) == "shared" ? Memory::Kind::shared : Memory::Kind::plain,
                                   number(2), number(3), number(3) % 7);
      owned.region = std::make_unique<Region>(*instance_, *owned.memory);
      const RegionFacts facts = owned.region->facts();
      regions_.emplace(facts.id, std::move(owned));
      return fmt::format("{} {} {} {}", facts.id, facts.address, facts.length, to_hex(facts.public_data));
    }
    if (verb == "hash" || verb == "fill") {
      // The order between our driver's thread, whose GPU may have moved these bytes, and this one goes
      // through the other process, where nobody can see it. So it goes through this lock as well.
      const std::scoped_lock driven(instance_->turn()->mutex);
      if (verb == "hash") return std::to_string(hash64(bytes_of(number(1))));
      return fill_pattern(bytes_of(number(1)), number(2)), "";
    }
    if (verb == "watch") {  // hashed inside each `received` from now on
      const std::scoped_lock lock(mutex_);
      watched_ = bytes_of(number(1));
      return "";
    }
    if (verb == "part") {  // ID OFFSET LENGTH: a region of its own, of memory that is another's
      const Memory& memory = *regions_.at(static_cast<std::uint32_t>(number(1))).memory;
      Owned owned;
      owned.region = std::make_unique<Region>(*instance_, memory, number(2), number(3));
      const RegionFacts facts = owned.region->facts();
      regions_.emplace(facts.id, std::move(owned));
      return fmt::format("{} {} {} {}", facts.id, facts.address, facts.length, to_hex(facts.public_data));
    }
    if (verb == "replace") {  // ID SEED: the memory is freed, and other memory has its address, while the
                              // region stays registered
      Owned& owned = regions_.at(static_cast<std::uint32_t>(number(1)));
      const std::size_t length = owned.memory->bytes().size();
      owned.memory.reset();
      owned.memory = std::make_unique<Memory>(Memory::Kind::plain, length, number(2));
      return std::to_string(owned.memory->address());
    }
    if (verb == "lose") {  // ID OFFSET: the pages from there on fault from now on
      Owned& owned = regions_.at(static_cast<std::uint32_t>(number(1)));
      owned.lost = std::make_unique<LostPages>(owned.memory->bytes().subspan(number(2)));
      return "";
    }
    if (verb == "handle") return OwnFaults::handle(), "";
    if (verb == "fault") return std::to_string(OwnFaults::count_another());
    if (verb == "fork") {  // a child that holds on to all that is open until the test lets go of us
      const pid_t child = ::fork();
      if (child == 0) {
        pollfd line{peer_control_fd, 0, 0};
        while (::poll(&line, 1, -1) < 0) {
        }
        ::_exit(0);
      }
      return std::to_string(child);
    }
    if (verb == "number")
      return FakeGpus::of_this_process().driver().set_process_number(static_cast<int>(number(1))), "";
    if (verb == "hold") return FakeGpus::of_this_process().driver().hold(), "";
    if (verb == "calls") return std::to_string(FakeGpus::of_this_process().driver().calls(words.at(1)));
    if (verb == "fail") {  // SYMBOL: its next call finds no way to the other GPU
      FakeGpus::of_this_process().driver().fail(words.at(1), cuda::Outcome::peer_access_unsupported);
      return "";
    }
    if (verb == "deregister")
      return regions_.at(static_cast<std::uint32_t>(number(1))).region->deregister(), "";
    if (verb == "accepted") {  // waits for the next link that came in and takes it up
      std::vector<HostLink> links;
      const bool came = world_.until([&] {
        links = instance_->host().accepted_links();
        std::erase_if(links, [&](const HostLink& link) {
          return std::ranges::any_of(links_, [&](const Link& known) { return known.token() == link.token; });
        });
        return !links.empty();
      });
      if (!came) throw std::runtime_error("no link came in: " + world_.describe());
      links_.emplace_back(*instance_, links[0].connection, links[0].token);
      return std::to_string(links_.size() - 1);
    }
    if (verb == "send")
      return links_.at(number(1)).send(world_, static_cast<std::uint32_t>(number(2)), from_hex(words.at(3))),
             "";
    if (verb == "lost") return links_.at(number(1)).lost() ? "1" : "0";
    if (verb == "disconnect") return links_.at(number(1)).disconnect(), "";
    if (verb == "await") {  // as many messages
      const std::size_t count = number(1);
      if (!world_.until([&] { return instance_->host().message_count() >= count; }))
        throw std::runtime_error("messages are missing: " + world_.describe());
      return std::to_string(instance_->host().message_count());
    }
    if (verb == "message") {
      const HostMessage message = instance_->host().messages().at(number(1));
      const std::scoped_lock lock(mutex_);
      return fmt::format("{} {} {}", message.channel, seen_.at(number(1)), to_hex(message.bytes));
    }
    throw std::runtime_error("there is no verb " + verb);
  }

 private:
  std::span<std::byte> bytes_of(std::uint64_t id) {
    return regions_.at(static_cast<std::uint32_t>(id)).memory->bytes();
  }

  World world_;
  std::unique_ptr<Instance> instance_;
  std::map<std::uint32_t, Owned> regions_;
  std::vector<Link> links_;
  std::mutex mutex_;
  std::span<const std::byte> watched_;
  std::vector<std::uint64_t> seen_;
};

/// This process's memory is of the second GPU, so that tests' requests go from GPU to GPU.
void use_fake_gpus() {
  FakeGpus& gpus = FakeGpus::of_this_process();
  gpus.choose(1);
  MemorySource::use(&gpus);
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("contract_peer BACKEND NAME INCARNATION RUNTIME_DIR [--vram] [OPTION=VALUE ...]\n", stderr);
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives its test
  ::signal(SIGPIPE, SIG_IGN);
  Settings settings;
  for (int i = 5; i < argc; ++i) {
    const std::string_view setting = argv[i];
    if (setting == "--vram") {
      use_fake_gpus();
      continue;
    }
    const auto equals = setting.find('=');
    settings.emplace(setting.substr(0, equals), setting.substr(equals + 1));
  }
  FakeGpus::offer_backends();
  ControlLine line(peer_control_fd);
  std::unique_ptr<Peer> peer;
  try {
    peer = std::make_unique<Peer>(argv[1], argv[2], std::stoull(argv[3]), argv[4], settings);
    line.write_line("ok");
  } catch (const std::exception& e) {
    line.write_line(std::string("error ") + e.what());
    return 1;
  }
  std::string text;
  while (line.read_line(text)) {
    const auto words = words_of(text);
    try {
      if (words.at(0) == "quit") {
        peer->end();
        line.write_line("ok");
        return 0;
      }
      line.write_line("ok " + peer->answer(words));
    } catch (const std::exception& e) {
      line.write_line(std::string("error ") + e.what());
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace::contract

int main(int argc, char** argv) { return headrace::contract::run(argc, argv); }
