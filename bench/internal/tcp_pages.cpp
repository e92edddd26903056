// SPDX-License-Identifier: Apache-2.0
// Random pages between two processes over the tcp backend's table, without an agent: what the backend itself
// gives, to be held against bench_raw_tcp at the same number of streams. Prints one JSON line.
//
//   bench_tcp_pages [--op read|write] [--page BYTES] [--streams N] [--memory BYTES] [--request BYTES]
//   [--in-flight N]
//                   [--seconds S] [--latency 1] [--set OPTION=VALUE ...]
//
// Each side has one region of --memory bytes; a request moves --request bytes of pages, at random places on
// both sides. With --latency 1 one page at a time moves, and the line has the median and the 99th percentile.
// All data is compared at the end: each page of the destination holds what the source page with its number
// held.
#include "backends/tcp/backend.hpp"
#include "base/clock.hpp"
#include "base/options.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

[[noreturn]] void die(std::string_view what) {
  fmt::print(stderr, "bench_tcp_pages: {}\n", what);
  std::_Exit(1);
}

struct Plan {
  bool write = false;
  std::uint64_t page_bytes = 4096;
  unsigned streams = 1;
  std::uint64_t memory_bytes = 256 << 20;
  std::uint64_t request_bytes = 64 << 20;
  unsigned in_flight = 2;
  double seconds = 2;
  bool latency = false;
  std::vector<std::pair<std::string, std::string>> settings;
};

std::uint64_t bytes_of(const char* text) {
  const auto parsed = parse_bytes(text);
  if (!parsed) die(parsed.error().message);
  return parsed.value();
}

Plan parse(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* const value = argv[i + 1];
    if (name == "--op")
      plan.write = std::string_view(value) == "write";
    else if (name == "--page")
      plan.page_bytes = bytes_of(value);
    else if (name == "--streams")
      plan.streams = static_cast<unsigned>(std::stoi(value));
    else if (name == "--memory")
      plan.memory_bytes = bytes_of(value);
    else if (name == "--request")
      plan.request_bytes = bytes_of(value);
    else if (name == "--in-flight")
      plan.in_flight = static_cast<unsigned>(std::stoi(value));
    else if (name == "--seconds")
      plan.seconds = std::stod(value);
    else if (name == "--latency")
      plan.latency = std::stoi(value) != 0;
    else if (name == "--set") {
      const std::string text = value;
      plan.settings.emplace_back(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
    } else
      die(fmt::format("unknown argument {}", name));
  }
  plan.settings.emplace_back("sockets", std::to_string(plan.streams));
  plan.memory_bytes = plan.memory_bytes / plan.page_bytes * plan.page_bytes;
  plan.request_bytes = std::min(plan.request_bytes, plan.memory_bytes);
  if (plan.latency) plan.request_bytes = plan.page_bytes;
  return plan;
}

/// The least of a host: it counts ends and links.
struct BenchHost {
  headrace_host_v1 table{};
  std::atomic<std::uint64_t> ends{0};
  std::atomic<bool> ready{false}, lost{false};
  std::atomic<int> failed{0};

  explicit BenchHost(const char* name, std::uint64_t incarnation) {
    const auto self = [](void* c) -> BenchHost& { return *static_cast<BenchHost*>(c); };
    (void)self;
    table.struct_size = sizeof table;
    table.pool_threads = 1;
    table.context = this;
    table.agent_name = name;
    table.incarnation = incarnation;
    table.log_enabled = [](void*, int32_t level) { return level <= HEADRACE_LOG_WARN ? 1 : 0; };
    table.log = [](void*, int32_t, const char* text, size_t n) {
      fmt::print(stderr, "{}\n", std::string_view(text, n));
    };
    table.now_ns = [](void*) { return now_ns(); };
    table.count = [](void*, const char*, uint64_t) {};
    table.completed = [](void* c, uint64_t, headrace_status_v1 status, const char* text, size_t n) {
      auto& host = *static_cast<BenchHost*>(c);
      if (status.code != 0)
        fmt::print(stderr, "a post failed: {} {}\n", status.code, std::string_view(text, n)), host.failed++;
      host.ends.fetch_add(1, std::memory_order_release);
      host.ends.notify_all();
    };
    table.accepted = [](void*, void*, const char*, uint64_t) -> uint64_t { return 1; };
    table.link_event = [](void* c, uint64_t, int32_t event, headrace_status_v1, const char* text, size_t n) {
      auto& host = *static_cast<BenchHost*>(c);
      (event == HEADRACE_LINK_READY ? host.ready : host.lost) = true;
      if (event == HEADRACE_LINK_LOST) fmt::print(stderr, "{}\n", std::string_view(text, n));
    };
    table.received = [](void*, uint64_t, uint32_t, const void*, size_t) {};
    table.submit = [](void*, void (*)(void*), void*) { return 0; };
    table.wake = [](void*) {};
  }
};

struct ErrorText {
  char buffer[1024];
  headrace_text_v1 text{sizeof text, buffer, sizeof buffer, 0};
  void must(int32_t code, const char* what) {
    if (code != 0) die(fmt::format("{}: {}", what, std::string_view(buffer, text.length)));
  }
};

struct Side {
  const headrace_backend_v1* backend = plugin::table<tcp::TcpBackend>();
  BenchHost host;
  void* instance = nullptr;
  std::byte* memory = nullptr;
  void* region = nullptr;
  ErrorText error;

  Side(const Plan& plan, const char* name, std::uint64_t incarnation, std::uint64_t salt)
      : host(name, incarnation) {
    std::vector<headrace_setting_v1> settings;
    for (const auto& row : tcp::TcpBackend::options()) {
      const char* value = row.default_value;
      for (const auto& [key, text] : plan.settings)
        if (key == row.name) value = text.c_str();
      settings.push_back({row.name, value});
    }
    const headrace_create_v1 create{sizeof create, settings.data(), settings.size(), "/tmp", 0};
    error.must(backend->create(&host.table, &create, &instance, &error.text), "create");
    memory = static_cast<std::byte*>(
        ::mmap(nullptr, plan.memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED) die("no memory");
    for (std::uint64_t i = 0; i < plan.memory_bytes / 8; ++i) {
      const std::uint64_t word = (i + salt) * 0x9e3779b97f4a7c15ULL;
      std::memcpy(memory + i * 8, &word, 8);
    }
    headrace_region_v1 args{};
    args.struct_size = sizeof args;
    args.region_id = 1;
    args.kind = HEADRACE_DRAM;
    args.address = reinterpret_cast<std::uint64_t>(memory);
    args.length = plan.memory_bytes;
    args.device = args.memory_fd = args.file_fd = -1;
    error.must(backend->register_region(instance, &args, &region, &error.text), "register");
  }
};

std::vector<std::uint32_t> shuffled(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

/// The owner: gives out how to reach it, waits for a line, and after it says for which pages `check` fails.
void own(const Plan& plan, int in, int out) {
  Side side(plan, "owner", 2, 1'000'000'007);
  std::string info;
  const headrace_sink_v1 sink{sizeof sink, &info, [](void* c, const void* bytes, size_t n) {
                                static_cast<std::string*>(c)->append(static_cast<const char*>(bytes), n);
                              }};
  side.error.must(side.backend->connection_info(side.instance, &sink, &side.error.text), "connection_info");
  info += '\n';
  if (::write(out, info.data(), info.size()) < 0) die("pipe");
  char word = 0;
  if (::read(in, &word, 1) <= 0) std::_Exit(1);
  // The initiator compares: it is told all that we hold.
  for (std::uint64_t at = 0; at < plan.memory_bytes;) {
    const ssize_t n = ::write(out, side.memory + at, plan.memory_bytes - at);
    if (n <= 0) std::_Exit(1);
    at += static_cast<std::uint64_t>(n);
  }
  (void)!::read(in, &word, 1);
  std::_Exit(0);
}

struct Slot {
  std::vector<std::uint32_t> local_pages, remote_pages;
  void* regions[1];
  void* remotes[1];
  headrace_side_v1 local{}, remote{};
  headrace_prepare_v1 prepare{};
  void* request = nullptr;
  std::uint64_t number = 0;  // the token of its posts: one is in flight at a time
  std::uint64_t posts = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Plan plan = parse(argc, argv);
  int to_owner[2], from_owner[2];
  if (::pipe(to_owner) < 0 || ::pipe(from_owner) < 0) die("pipe");
  const pid_t owner = ::fork();
  if (owner == 0) own(plan, to_owner[0], from_owner[1]);

  Side side(plan, "initiator", 1, 0);
  std::string info;
  for (char c = 0; ::read(from_owner[0], &c, 1) == 1 && c != '\n';) info += c;
  const headrace_connect_v1 connect{sizeof connect, 7, "owner", 2, {info.data(), info.size()}};
  void* link = nullptr;
  side.error.must(side.backend->connect(side.instance, &connect, &link, &side.error.text), "connect");
  while (!side.host.ready && !side.host.lost) std::this_thread::yield();
  if (side.host.lost) die("no link");
  const headrace_remote_region_v1 remote_region{sizeof remote_region, 1,           HEADRACE_DRAM, 0,
                                                plan.memory_bytes,    {nullptr, 0}};
  void* remote = nullptr;
  side.error.must(side.backend->load_remote(side.instance, link, &remote_region, &remote, &side.error.text),
                  "load_remote");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // all sockets are there

  // Every slot has pages of its own on both sides, so that the whole can be checked at the end.
  const std::uint64_t pages = plan.memory_bytes / plan.page_bytes;
  const std::uint64_t request_pages = plan.request_bytes / plan.page_bytes;
  const std::uint64_t slots_wanted =
      plan.latency ? std::min<std::uint64_t>(pages, 64) : pages / request_pages;
  const auto local_order = shuffled(pages, 1), remote_order = shuffled(pages, 2);
  std::vector<std::unique_ptr<Slot>> slots;
  for (std::uint64_t s = 0; s < slots_wanted; ++s) {
    auto slot = std::make_unique<Slot>();
    slot->number = s;
    const auto part = [&](const auto& order) {
      return std::vector<std::uint32_t>(order.begin() + static_cast<std::ptrdiff_t>(s * request_pages),
                                        order.begin() + static_cast<std::ptrdiff_t>((s + 1) * request_pages));
    };
    slot->local_pages = part(local_order);
    slot->remote_pages = part(remote_order);
    slot->regions[0] = side.region;
    slot->remotes[0] = remote;
    for (headrace_side_v1* one : {&slot->local, &slot->remote}) {
      one->struct_size = sizeof *one;
      one->regions = one == &slot->local ? slot->regions : slot->remotes;
      one->region_count = 1;
      one->columns.indices = (one == &slot->local ? slot->local_pages : slot->remote_pages).data();
      one->columns.stride_bytes = one->columns.page_bytes = plan.page_bytes;
    }
    slot->prepare = {sizeof(headrace_prepare_v1),
                     plan.write ? HEADRACE_WRITE : HEADRACE_READ,
                     0,
                     link,
                     request_pages,
                     request_pages * plan.page_bytes,
                     &slot->local,
                     &slot->remote,
                     nullptr};
    side.error.must(side.backend->prepare(side.instance, &slot->prepare, &slot->request, &side.error.text),
                    "prepare");
    slots.push_back(std::move(slot));
  }
  const auto post = [&](Slot& slot) {
    headrace_post_v1 args{};
    args.struct_size = sizeof args;
    args.token = slot.number;
    args.post_number = ++slot.posts;
    args.deadline_ns = UINT64_MAX;
    if (side.backend->post(side.instance, slot.request, &args).code != 0) die("post refused");
  };

  std::vector<std::uint64_t> samples, post_samples;
  std::uint64_t begun = 0, moved = 0, began_ns = 0, took_ns = 0;
  if (plan.latency) {
    const std::uint64_t until = now_ns() + static_cast<std::uint64_t>(plan.seconds * 1e9);
    while (now_ns() < until) {
      Slot& slot = *slots[begun % slots.size()];
      const std::uint64_t before = now_ns();
      post(slot);
      ++begun;
      post_samples.push_back(now_ns() - before);
      // As the engine waits: with the request's poll for a while, then asleep.
      const std::uint64_t spin_until = before + 50'000;
      while (side.host.ends.load(std::memory_order_acquire) != begun) {
        if (side.backend->poll(side.instance, slot.request) == 0 && now_ns() > spin_until)
          side.host.ends.wait(begun - 1, std::memory_order_acquire);
      }
      samples.push_back(now_ns() - before);
    }
  } else {
    const std::uint64_t warm_up = std::max<std::uint64_t>(slots.size(), plan.in_flight);
    for (unsigned i = 0; i < plan.in_flight; ++i) post(*slots[begun++ % slots.size()]);
    std::uint64_t seen = 0;
    for (bool running = true; running || seen < begun;) {
      side.host.ends.wait(seen, std::memory_order_acquire);
      const std::uint64_t now_ended = side.host.ends.load(std::memory_order_acquire);
      while (seen < now_ended) {
        ++seen;
        if (seen == warm_up) began_ns = now_ns();
        if (seen > warm_up && running) moved += plan.request_bytes;
        if (seen > warm_up && running &&
            now_ns() - began_ns > static_cast<std::uint64_t>(plan.seconds * 1e9)) {
          took_ns = now_ns() - began_ns;
          running = false;
        }
        // Requests end in about the order they were posted; a slot is posted again long after its end.
        if (running) post(*slots[begun++ % slots.size()]);
      }
    }
  }
  if (side.host.failed != 0) die("posts failed");

  // Compare all that moved, and that nothing else did.
  std::vector<std::byte> theirs(plan.memory_bytes);
  if (::write(to_owner[1], "d", 1) != 1) die("pipe");
  for (std::uint64_t at = 0; at < plan.memory_bytes;) {
    const ssize_t n = ::read(from_owner[0], theirs.data() + at, plan.memory_bytes - at);
    if (n <= 0) die("the owner is gone");
    at += static_cast<std::uint64_t>(n);
  }
  std::uint64_t wrong = 0, compared = 0;
  for (const auto& slot : slots) {
    if (slot->posts == 0) continue;
    for (std::uint64_t i = 0; i < request_pages; ++i) {
      ++compared;
      const std::byte* const here = side.memory + slot->local_pages[i] * plan.page_bytes;
      const std::byte* const there = theirs.data() + slot->remote_pages[i] * plan.page_bytes;
      const std::uint64_t word =
          ((plan.write ? slot->local_pages[i] : slot->remote_pages[i]) * plan.page_bytes / 8 +
           (plan.write ? 0 : 1'000'000'007)) *
          0x9e3779b97f4a7c15ULL;
      if (std::memcmp(here, there, plan.page_bytes) != 0 || std::memcmp(here, &word, 8) != 0) ++wrong;
    }
  }
  if (wrong != 0) die(fmt::format("{} of {} pages are wrong", wrong, compared));

  const std::string common = fmt::format(
      "\"program\": \"tcp_pages\", \"op\": \"{}\", \"page\": {}, \"streams\": {}, \"checked_pages\": {}",
      plan.write ? "write" : "read", plan.page_bytes, plan.streams, compared);
  if (plan.latency) {
    std::sort(samples.begin(), samples.end());
    std::sort(post_samples.begin(), post_samples.end());
    fmt::print("{{{}, \"samples\": {}, \"p50_us\": {:.2f}, \"p99_us\": {:.2f}, \"post_p50_us\": {:.2f}}}\n",
               common, samples.size(), static_cast<double>(samples[samples.size() / 2]) * 1e-3,
               static_cast<double>(samples[samples.size() * 99 / 100]) * 1e-3,
               static_cast<double>(post_samples[post_samples.size() / 2]) * 1e-3);
  } else {
    fmt::print("{{{}, \"bytes\": {}, \"seconds\": {:.3f}, \"GB/s\": {:.3f}}}\n", common, moved,
               static_cast<double>(took_ns) * 1e-9,
               static_cast<double>(moved) / static_cast<double>(took_ns));
  }
  for (const auto& slot : slots) side.backend->release(side.instance, slot->request);
  side.backend->unload(side.instance, remote);
  side.backend->disconnect(side.instance, link);
  side.backend->deregister_region(side.instance, side.region);
  side.backend->destroy(side.instance);
  (void)!::write(to_owner[1], "q", 1);
  ::waitpid(owner, nullptr, 0);
}
