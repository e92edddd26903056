// SPDX-License-Identifier: Apache-2.0
// The shm backend against what the machine gives without it: the same random pages of another process moved
// by bare process_vm_readv or bare memcpy on as many threads, in turn with ours; one small read; a message
// there and back.
//
//   bench_shm_raw [--mib 256] [--rounds 9] [--threads 2]
//
// Bare attach uses 512 pages a call. Every transfer of ours is compared with its source. Times on shared
// cores wander, so the lines give best and median, and ratios of the two contenders of one sitting.
#include "backends/shm/backend.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/random.hpp"
#include "base/unix_socket.hpp"
#include "base/worker_pool.hpp"
#include "memory/allocation.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace headrace;

template <class T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

void must(bool good, std::string_view what) {
  if (good) return;
  fmt::print(stderr, "{}\n", what);
  std::exit(1);
}

struct Arguments {
  std::size_t bytes = 256u << 20;
  int rounds = 9;
  std::size_t threads = 2;
};

Arguments read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const auto value = static_cast<std::size_t>(std::stoll(argv[i + 1]));
    if (name == "--mib") arguments.bytes = value << 20;
    if (name == "--rounds") arguments.rounds = static_cast<int>(value);
    if (name == "--threads") arguments.threads = value;
  }
  return arguments;
}

// ------------------------------------------------------------------ a host for one instance

class BenchHost {
 public:
  BenchHost(const char* name, const std::string& runtime_dir, std::size_t threads) {
    // The thread that posts works as well, so the pool has one less: none, where it is alone.
    if (threads > 1) pool_ = must(WorkerPool::open(name, threads - 1, 1024));
    table_.struct_size = sizeof table_;
    table_.pool_threads = static_cast<std::uint32_t>(std::max<std::size_t>(threads - 1, 1));
    table_.context = this;
    table_.agent_name = name;
    table_.incarnation = random_u64() | 1;
    table_.log_enabled = [](void*, int32_t) { return 1; };
    table_.log = [](void*, int32_t, const char* text, size_t length) {
      fmt::print(stderr, "{}\n", std::string_view(text, length));
    };
    table_.now_ns = [](void*) { return headrace::now_ns(); };
    table_.count = [](void*, const char*, uint64_t) {};
    table_.completed = [](void* context, uint64_t, headrace_status_v1 status, const char* text,
                          size_t length) {
      must(status.code == HEADRACE_OK, std::string_view(text, length));
      self(context).completed_.fetch_add(1, std::memory_order_release);
    };
    table_.accepted = [](void* context, void* accepted_link, const char*, uint64_t) {
      self(context).connection = accepted_link;
      return uint64_t{1};
    };
    table_.link_event = [](void* context, uint64_t, int32_t event, headrace_status_v1, const char*, size_t) {
      (event == HEADRACE_LINK_READY ? self(context).ready : self(context).lost) = true;
    };
    table_.received = [](void* context, uint64_t, uint32_t, const void*, size_t) {
      ++self(context).received;
    };
    table_.submit = [](void* context, void (*function)(void*), void* argument) {
      const auto& pool = self(context).pool_;
      return pool != nullptr && pool->submit([function, argument] { function(argument); }) ? 1 : 0;
    };
    table_.wake = [](void*) {};
    const plugin::CreateArgs args{{}, runtime_dir};
    backend = must(shm::ShmBackend::open(plugin::Host(&table_), args));
  }

  /// Progress until `done`, asleep on the descriptor in between if `may_sleep`.
  void until(const std::function<bool()>& done, bool may_sleep) {
    while (!done()) {
      if (backend->progress() > 0 || !may_sleep) continue;
      if (backend->arm(true) == 0 && !done()) {
        pollfd look{backend->descriptor(), POLLIN, 0};
        (void)::poll(&look, 1, 1000);
      }
      (void)backend->arm(false);
    }
  }
  [[nodiscard]] std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t incarnation() const { return table_.incarnation; }

  std::unique_ptr<shm::ShmBackend> backend;
  void* connection = nullptr;
  bool ready = false;
  bool lost = false;
  std::uint64_t received = 0;

 private:
  static BenchHost& self(void* context) { return *static_cast<BenchHost*>(context); }
  headrace_host_v1 table_{};
  std::unique_ptr<WorkerPool> pool_;
  std::atomic<std::uint64_t> completed_{0};
};

headrace_region_v1 region_of(std::uint32_t id, std::span<std::byte> memory, int memory_fd) {
  headrace_region_v1 region{};
  region.struct_size = sizeof region;
  region.region_id = id;
  region.kind = HEADRACE_DRAM;
  region.address = reinterpret_cast<std::uintptr_t>(memory.data());
  region.length = memory.size();
  region.device = region.file_fd = -1;
  region.memory_fd = memory_fd;
  return region;
}

std::span<std::byte> private_memory(std::size_t bytes, int fill) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "no memory");
  std::memset(at, fill, bytes);
  return {static_cast<std::byte*>(at), bytes};
}

/// Words that differ from place to place and from seed to seed.
void fill_words(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size() / 8; ++i) {
    const std::uint64_t word = (i + (seed << 32)) * 0x9e3779b97f4a7c15;
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
}

// ------------------------------------------------------------------ the owner's process

/// What the owner tells the initiator, through a pipe.
struct OwnerFacts {
  std::uint64_t incarnation = 0;
  std::uint64_t plain_address = 0;
  std::uint64_t shared_address = 0;
  std::uint64_t info_length = 0;
  char info[512] = "";
};

/// Which answer a ping gets: from a receiver that spins, or from one that sleeps.
enum class Mode : std::uint32_t { sleep, spin };

[[noreturn]] void own(const Arguments& arguments, const std::string& runtime_dir, int shared_fd,
                      std::span<std::byte> shared, std::atomic<Mode>& mode, int facts_pipe) {
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const std::span<std::byte> plain = private_memory(arguments.bytes, 1);
  fill_words(plain, 0);
  fill_words(shared, 0);
  {
    BenchHost host("owner", runtime_dir, 1);
    auto* const plain_region = must(host.backend->register_region(region_of(1, plain, -1)));
    auto* const shared_region = must(host.backend->register_region(region_of(2, shared, shared_fd)));
    OwnerFacts facts;
    const std::string info = must(host.backend->connection_info());
    facts.incarnation = host.incarnation();
    facts.plain_address = reinterpret_cast<std::uintptr_t>(plain.data());
    facts.shared_address = reinterpret_cast<std::uintptr_t>(shared.data());
    facts.info_length = info.size();
    info.copy(facts.info, sizeof facts.info);
    must(::write(facts_pipe, &facts, sizeof facts) == sizeof facts, "tell the facts");
    std::uint64_t answered = 0;
    while (!host.lost) {
      const bool sleeps = mode.load() == Mode::sleep;
      host.until(
          [&] { return host.lost || host.received > answered || (mode.load() == Mode::sleep) != sleeps; },
          sleeps);
      for (; host.received > answered; ++answered)
        must(host.backend->notify(*shm::Handles::link(host.connection), 0, "pong").ok(), "answer");
    }
    host.backend->disconnect(*shm::Handles::link(host.connection));
    host.backend->deregister_region(*plain_region);
    host.backend->deregister_region(*shared_region);
  }
  ::_exit(0);
}

// ------------------------------------------------------------------ measuring

double seconds(const std::function<void()>& work) {
  const std::uint64_t begin = now_ns();
  work();
  return static_cast<double>(now_ns() - begin) / 1e9;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Contest {
  std::vector<double> bare, ours;
  std::size_t compared = 0;  // of ours
};

struct Side {
  headrace_side_v1 view{};
  std::vector<std::uint32_t> indices;
  Side(void** region, std::vector<std::uint32_t> order, std::size_t page) : indices(std::move(order)) {
    view.struct_size = sizeof view;
    view.regions = region;
    view.region_count = 1;
    view.columns.indices = indices.data();
    view.columns.stride_bytes = view.columns.page_bytes = page;
  }
};

class Initiator {
 public:
  Initiator(const Arguments& arguments, const std::string& runtime_dir, const OwnerFacts& facts, pid_t owner,
            std::span<std::byte> shared)
      : arguments_(arguments),
        facts_(facts),
        owner_(owner),
        shared_(shared),
        host_("initiator", runtime_dir, arguments.threads),
        target_(private_memory(arguments.bytes, 3)) {
    headrace_connect_v1 connect{};
    connect.struct_size = sizeof connect;
    connect.link_token = 1;
    connect.peer_name = "owner";
    connect.peer_incarnation = facts.incarnation;
    connect.connection_info = {facts.info, facts.info_length};
    link_ = must(host_.backend->connect(connect));
    host_.until([&] { return host_.ready || host_.lost; }, true);
    must(host_.ready, "no link");
    local_ = must(host_.backend->register_region(region_of(1, target_, -1)));
    plain_ = load(1, facts.plain_address);
    mapped_ = load(2, facts.shared_address);
  }
  ~Initiator() {
    host_.backend->disconnect(*link_);
    host_.backend->unload(shm::Handles::remote(plain_));
    host_.backend->unload(shm::Handles::remote(mapped_));
    host_.backend->deregister_region(shm::Handles::region(local_));
  }

  void pages(std::size_t page, std::size_t threads) {
    const std::size_t count = arguments_.bytes / page;
    std::vector<std::uint32_t> here(count), there(count);
    std::iota(here.begin(), here.end(), 0);
    there = here;
    std::mt19937 random(1);
    std::ranges::shuffle(here, random);
    std::ranges::shuffle(there, random);
    for (const bool mapped : {false, true}) {
      Contest contest;
      for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
        Prepared request(*this, op, mapped ? mapped_ : plain_, here, there, page);
        contest = {};
        for (int round = 0; round < arguments_.rounds + 1; ++round) {  // the first warms up
          renew(op);
          const double bare = seconds([&] { bare_pages(op, mapped, here, there, page, threads); });
          renew(op);
          const double ours = seconds([&] { run(request.handle); });
          check(mapped, here, there, page);
          if (round == 0) continue;
          contest.bare.push_back(bare);
          contest.ours.push_back(ours);
          ++contest.compared;
        }
        report(fmt::format("{} {} {:>7}", mapped ? "mapped" : "attach",
                           op == HEADRACE_READ ? "read " : "write", page),
               contest);
      }
    }
  }

  void one_read(std::size_t bytes) {
    for (const bool mapped : {true, false}) {
      Prepared request(*this, HEADRACE_READ, mapped ? mapped_ : plain_, {7}, {5}, bytes);
      std::vector<double> ours, bare;
      for (int i = 0; i < 20'000; ++i) {
        ours.push_back(seconds([&] { run(request.handle); }));
        const iovec local{target_.data(), bytes},
            remote{reinterpret_cast<void*>(facts_.plain_address), bytes};
        if (!mapped)
          bare.push_back(seconds([&] { (void)!::process_vm_readv(owner_, &local, 1, &remote, 1, 0); }));
      }
      fmt::print("one read of {} bytes, {}: p50 {:.3f} us, p99 {:.3f} us", bytes,
                 mapped ? "mapped" : "attached", median(ours) * 1e6, percentile(ours, 0.99) * 1e6);
      if (!mapped) fmt::print(" (bare call {:.3f} us)", median(bare) * 1e6);
      fmt::print("\n");
    }
  }

  void ping_pong(std::atomic<Mode>& mode, Mode how, int count) {
    mode.store(how);
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const std::uint64_t before = host_.received;
      times.push_back(seconds([&] {
        must(host_.backend->notify(*link_, 0, "ping").ok(), "notify");
        host_.until([&] { return host_.received > before; }, how == Mode::sleep);
      }));
    }
    fmt::print("message there and back, {}: p50 {:.2f} us, p99 {:.2f} us\n",
               how == Mode::spin ? "both spin" : "both sleep", median(times) * 1e6,
               percentile(times, 0.99) * 1e6);
    asleep_ = median(times);
  }
  [[nodiscard]] double last_ping_pong() const { return asleep_; }

 private:
  struct Prepared {
    Prepared(Initiator& initiator, headrace_op_v1 op, void* remote_region, std::vector<std::uint32_t> here,
             std::vector<std::uint32_t> there, std::size_t page)
        : owner(initiator),
          region(remote_region),
          local(&initiator.local_, std::move(here), page),
          remote(&region, std::move(there), page) {
      headrace_prepare_v1 args{};
      args.struct_size = sizeof args;
      args.op = op;
      args.connection = initiator.link_;
      args.count = local.indices.size();
      args.bytes = args.count * page;
      args.local = &local.view;
      args.remote = &remote.view;
      handle = must(initiator.host_.backend->prepare(initiator.link_, args));
    }
    ~Prepared() { owner.host_.backend->release(*handle); }
    Prepared(const Prepared&) = delete;
    Initiator& owner;
    void* region;
    Side local, remote;
    shm::Request* handle = nullptr;
  };

  static double percentile(std::vector<double> values, double share) {
    std::ranges::sort(values);
    return values[static_cast<std::size_t>(static_cast<double>(values.size() - 1) * share)];
  }

  void* load(std::uint32_t id, std::uint64_t address) {
    headrace_remote_region_v1 region{};
    region.struct_size = sizeof region;
    region.region_id = id;
    region.kind = HEADRACE_DRAM;
    region.address = address;
    region.length = arguments_.bytes;
    return must(host_.backend->load_remote(*link_, region));
  }

  void run(shm::Request* request) {
    headrace_post_v1 post{};
    post.struct_size = sizeof post;
    post.deadline_ns = UINT64_MAX;
    const std::uint64_t before = host_.completed();
    must(host_.backend->post(*request, post).ok(), "post");
    while (host_.completed() == before) {
      if (!host_.backend->poll(*request)) std::this_thread::yield();
    }
  }

  void bare_pages(headrace_op_v1 op, bool mapped, const std::vector<std::uint32_t>& here,
                  const std::vector<std::uint32_t>& there, std::size_t page, std::size_t threads) {
    const auto part = [&](std::size_t first, std::size_t last) {
      if (mapped) {
        for (std::size_t i = first; i < last; ++i) {
          std::byte* const mine = target_.data() + here[i] * page;
          std::byte* const theirs = shared_.data() + there[i] * page;
          std::memcpy(op == HEADRACE_READ ? mine : theirs, op == HEADRACE_READ ? theirs : mine, page);
        }
        return;
      }
      constexpr std::size_t batch = 512;
      std::vector<iovec> local(batch), remote(batch);
      for (std::size_t i = first; i < last; i += batch) {
        const std::size_t n = std::min(batch, last - i);
        for (std::size_t k = 0; k < n; ++k) {
          local[k] = {target_.data() + here[i + k] * page, page};
          remote[k] = {reinterpret_cast<void*>(facts_.plain_address + there[i + k] * page), page};
        }
        if (op == HEADRACE_READ) {
          (void)!::process_vm_readv(owner_, local.data(), n, remote.data(), n, 0);
        } else {
          (void)!::process_vm_writev(owner_, local.data(), n, remote.data(), n, 0);
        }
      }
    };
    std::vector<std::thread> others;
    for (std::size_t t = 1; t < threads; ++t)
      others.emplace_back(part, here.size() * t / threads, here.size() * (t + 1) / threads);
    part(0, here.size() / threads);
    for (std::thread& other : others) other.join();
  }

  /// Our memory anew before each transfer, so that no byte of the transfer before passes for one of this:
  /// wiped where it is the target of a read, random words where it is the source of a write.
  void renew(headrace_op_v1 op) {
    if (op == HEADRACE_READ) {
      std::memset(target_.data(), 0xee, target_.size());
      return;
    }
    fill_words(target_, ++seed_);
  }
  /// Compares every page with its counterpart.
  void check(bool mapped, const std::vector<std::uint32_t>& here, const std::vector<std::uint32_t>& there,
             std::size_t page) {
    if (!mapped) {
      std::vector<std::byte> seen(page);
      for (std::size_t i = 0; i < here.size(); ++i) {
        const iovec local{seen.data(), page},
            remote{reinterpret_cast<void*>(facts_.plain_address + there[i] * page), page};
        must(::process_vm_readv(owner_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(page), "read back");
        must(std::memcmp(seen.data(), target_.data() + here[i] * page, page) == 0, "wrong bytes");
      }
      return;
    }
    for (std::size_t i = 0; i < here.size(); ++i)
      must(std::memcmp(target_.data() + here[i] * page, shared_.data() + there[i] * page, page) == 0,
           "wrong bytes");
  }

  void report(const std::string& name, const Contest& contest) const {
    const auto speed = [&](double time) { return static_cast<double>(arguments_.bytes) / time / 1e9; };
    std::vector<double> ratios;
    for (std::size_t i = 0; i < contest.bare.size(); ++i) ratios.push_back(contest.bare[i] / contest.ours[i]);
    const double best_bare = *std::ranges::min_element(contest.bare),
                 best_ours = *std::ranges::min_element(contest.ours);
    fmt::print(
        "{}: bare {:6.2f} best {:6.2f} median GB/s, shm {:6.2f} best {:6.2f} median, ratio best {:.2f} "
        "median {:.2f}, {} of {} transfers compared\n",
        name, speed(best_bare), speed(median(contest.bare)), speed(best_ours), speed(median(contest.ours)),
        best_bare / best_ours, median(ratios), contest.compared, contest.ours.size());
    std::fflush(stdout);
  }

  const Arguments arguments_;
  const OwnerFacts facts_;
  const pid_t owner_;
  const std::span<std::byte> shared_;
  BenchHost host_;
  const std::span<std::byte> target_;
  shm::Link* link_ = nullptr;
  void* local_ = nullptr;
  void* plain_ = nullptr;
  void* mapped_ = nullptr;
  double asleep_ = 0;
  std::uint64_t seed_ = 0;
};

/// Two threads of two processes would be the same: an eventfd each, blocking reads.
double eventfd_ping_pong(int count) {
  const int there = ::eventfd(0, 0), back = ::eventfd(0, 0);
  const pid_t child = ::fork();
  std::uint64_t value = 1;
  if (child == 0) {
    for (int i = 0; i < count; ++i) {
      (void)!::read(there, &value, 8);
      value = 1;
      (void)!::write(back, &value, 8);
    }
    ::_exit(0);
  }
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    times.push_back(seconds([&] {
      value = 1;
      (void)!::write(there, &value, 8);
      (void)!::read(back, &value, 8);
    }));
  }
  ::waitpid(child, nullptr, 0);
  ::close(there);
  ::close(back);
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv);
  std::string runtime_dir = "/tmp/headrace-bench-XXXXXX";
  must(::mkdtemp(runtime_dir.data()) != nullptr, "no folder");
  const Allocation shared = must(Allocation::make(arguments.bytes));
  std::memset(shared.bytes().data(), 2, arguments.bytes);
  auto* const mode = new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<Mode>(Mode::sleep);
  int facts_pipe[2];
  must(::pipe(facts_pipe) == 0, "no pipe");
  const pid_t owner = ::fork();
  if (owner == 0) own(arguments, runtime_dir, shared.fd(), shared.bytes(), *mode, facts_pipe[1]);
  OwnerFacts facts;
  must(::read(facts_pipe[0], &facts, sizeof facts) == sizeof facts, "the owner did not start");
  {
    Initiator initiator(arguments, runtime_dir, facts, owner, shared.bytes());
    initiator.one_read(64);
    initiator.one_read(4096);
    initiator.ping_pong(*mode, Mode::sleep, 3000);
    const double bare = eventfd_ping_pong(3000);
    fmt::print("eventfd there and back: p50 {:.2f} us, so a message asleep takes {:.2f} times that\n",
               bare * 1e6, initiator.last_ping_pong() / bare);
    initiator.ping_pong(*mode, Mode::spin, 20'000);
    mode->store(Mode::sleep);
    for (const std::size_t page : {4096UL, 16384UL, 65536UL, 1UL << 20, 16UL << 20})
      initiator.pages(page, arguments.threads);
  }
  ::waitpid(owner, nullptr, 0);
  ::rmdir(runtime_dir.c_str());
}
