// SPDX-License-Identifier: Apache-2.0
// How the owner of a lane can copy scattered pages of its memory into the ring: by instructions, as shm does,
// or by a system call, which reports memory that is gone without a signal. A process that owns the pages
// fills a ring as a lane has it, another one empties it, each on a core of its own.
//
//   bench_lane_copies [--rounds 9] [--mib 64]
//
// The memory begins 16 bytes into a page of the system, as NumPy's does. The ways take turns, every transfer
// is compared with its source, and the lines give the median.
#include "base/clock.hpp"
#include "host_link/memory_file.hpp"
#include "memory/page_copy.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace headrace;

constexpr std::size_t ring_bytes = 256 * 1024;
constexpr std::size_t publish_bytes = 32 * 1024;
constexpr std::size_t call_bytes = 64 * 1024;  // by a system call; other sizes are as fast
constexpr std::size_t skew = 16;

enum class Way : std::uint32_t { instructions, pwritev, process_vm_writev, process_vm_readv, none };
constexpr std::array names{"instructions", "pwritev", "process_vm_writev", "process_vm_readv"};

void must(bool good, std::string_view what) {
  if (good) return;
  fmt::print(stderr, "{}: {}\n", what, std::strerror(errno));
  std::exit(1);
}

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  must(::sched_setaffinity(0, sizeof one, &one) == 0, "stay on a core");
}

std::byte* memory_of(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes + skew, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "map memory");
  std::memset(at, 1, bytes + skew);
  return static_cast<std::byte*>(at) + skew;
}

/// Shared by the two processes.
struct Words {
  alignas(64) std::atomic<std::uint64_t> given{0};
  alignas(64) std::atomic<std::uint64_t> consumed{0};
  alignas(64) std::atomic<std::uint64_t> started{0};
  std::atomic<Way> way{Way::none};
  std::atomic<std::size_t> page_bytes{0};
};

struct Ring {
  UniqueFd file = host_link::create_memory_file("ring", ring_bytes).value();
  host_link::Mapping bytes = host_link::Mapping::of_file_twice(file.get(), 0, ring_bytes).value();
  Words* words =
      new (::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Words;
  [[nodiscard]] std::byte* at(std::uint64_t position) const { return bytes.data() + position % ring_bytes; }
};

std::vector<std::uint32_t> shuffled(std::size_t count, unsigned seed) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

// ------------------------------------------------------------------ the owner

class Owner {
 public:
  Owner(const Ring& ring, std::size_t bytes) : ring_(ring), memory_(memory_of(bytes)), bytes_(bytes) {
    for (std::size_t i = 0; i < bytes / 8; ++i) {
      const std::uint64_t word = i * 0x9e3779b97f4a7c15;
      std::memcpy(memory_ + 8 * i, &word, 8);
    }
  }

  [[noreturn]] void serve() {
    for (std::uint64_t next = 1;; ++next) {
      while (ring_.words->started.load() != next) ::sched_yield();
      if (ring_.words->way == Way::none) ::_exit(0);
      page_ = ring_.words->page_bytes;
      order_ = shuffled(bytes_ / page_, 1);
      ring_.words->way == Way::instructions ? copy_by_instructions() : copy_by_calls(ring_.words->way);
      publish();
    }
  }

 private:
  [[nodiscard]] std::span<const std::byte> source(std::size_t i) const {
    if (i >= order_.size()) return {};
    return {memory_ + order_[i] * page_, page_};
  }
  void wait_for_room(std::size_t bytes) {
    while (ring_bytes - (given_ - ring_.words->consumed.load(std::memory_order_acquire)) < bytes) {
    }
  }
  void publish() { ring_.words->given.store(published_ = given_, std::memory_order_release); }

  void copy_by_instructions() {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      wait_for_room(page_);
      prefetch_translation(source(i + 2));
      copy_and_fetch(ring_.at(given_), source(i).data(), page_, source(i + 1));
      given_ += page_;
      if (given_ - published_ >= publish_bytes) publish();
    }
  }
  void copy_by_calls(Way way) {
    std::vector<iovec> pages;
    for (std::size_t i = 0; i < order_.size(); i += pages.size()) {
      pages.clear();
      for (std::size_t k = i; k < std::min(order_.size(), i + call_bytes / page_); ++k)
        pages.push_back({const_cast<std::byte*>(source(k).data()), page_});
      const std::size_t bytes = pages.size() * page_;
      wait_for_room(bytes);
      must(copied(way, pages, bytes) == static_cast<ssize_t>(bytes), "copy");
      given_ += bytes;
      publish();
    }
  }
  [[nodiscard]] ssize_t copied(Way way, const std::vector<iovec>& pages, std::size_t bytes) const {
    const iovec room{ring_.at(given_), bytes};
    const auto count = pages.size();
    if (way == Way::process_vm_writev)
      return ::process_vm_writev(::getpid(), pages.data(), count, &room, 1, 0);
    if (way == Way::process_vm_readv) return ::process_vm_readv(::getpid(), &room, 1, pages.data(), count, 0);
    return ::pwritev(ring_.file.get(), pages.data(), static_cast<int>(count),
                     static_cast<off_t>(given_ % ring_bytes));
  }

  const Ring& ring_;
  std::byte* const memory_;
  const std::size_t bytes_;
  std::size_t page_ = 0;
  std::vector<std::uint32_t> order_;
  std::uint64_t given_ = 0;
  std::uint64_t published_ = 0;
};

// ------------------------------------------------------------------ the reader

class Reader {
 public:
  Reader(const Ring& ring, std::size_t bytes) : ring_(ring), target_(memory_of(bytes)), bytes_(bytes) {}

  /// GB/s.
  double read(Way way, std::size_t page) {
    const std::vector<std::uint32_t> order = shuffled(bytes_ / page, 2);
    ring_.words->way = way;
    ring_.words->page_bytes = page;
    const std::uint64_t begin = now_ns();
    ring_.words->started.fetch_add(1);
    for (const std::uint32_t index : order) take(target_ + index * page, page);
    finish_streaming();
    publish();
    const auto ns = static_cast<double>(now_ns() - begin);
    must(arrived(order, page), "the pages that arrived are others");
    return static_cast<double>(bytes_) / ns;
  }
  void end() {
    ring_.words->way = Way::none;
    ring_.words->started.fetch_add(1);
  }

 private:
  void take(std::byte* to, std::size_t page) {
    for (std::size_t done = 0; done < page;) {
      while (given_ == consumed_) {
        publish();
        given_ = ring_.words->given.load(std::memory_order_acquire);
      }
      const std::size_t some = std::min<std::uint64_t>(given_ - consumed_, page - done);
      copy_bytes(to + done, ring_.at(consumed_), some, CopyMode::streaming);
      done += some;
      consumed_ += some;
      if (consumed_ - published_ >= publish_bytes) publish();
    }
  }
  void publish() {
    if (published_ != consumed_)
      ring_.words->consumed.store(published_ = consumed_, std::memory_order_release);
  }
  [[nodiscard]] bool arrived(const std::vector<std::uint32_t>& order, std::size_t page) const {
    const std::vector<std::uint32_t> source = shuffled(order.size(), 1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (std::size_t at = 0; at < page; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, target_ + order[i] * page + at, 8);
        if (word != (source[i] * page + at) / 8 * 0x9e3779b97f4a7c15) return false;
      }
    }
    return true;
  }

  const Ring& ring_;
  std::byte* const target_;
  const std::size_t bytes_;
  std::uint64_t given_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t published_ = 0;
};

void measure(Reader& reader, std::size_t page, int rounds) {
  std::array<std::vector<double>, names.size()> speeds;
  for (int round = 0; round <= rounds; ++round) {  // the first warms up
    for (std::size_t way = 0; way < names.size(); ++way) {
      const double speed = reader.read(static_cast<Way>(way), page);
      if (round > 0) speeds[way].push_back(speed);
    }
  }
  for (std::size_t way = 0; way < names.size(); ++way) {
    std::ranges::sort(speeds[way]);
    fmt::print("{} {}: median {:.3f} GB/s\n", names[way], page, speeds[way][speeds[way].size() / 2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 9;
  std::size_t bytes = 64 << 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--rounds") rounds = std::max(std::stoi(argv[i + 1]), 1);
    if (std::string_view(argv[i]) == "--mib") bytes = static_cast<std::size_t>(std::stoi(argv[i + 1])) << 20;
  }
  const Ring ring;
  stay_on(0);
  const pid_t owner = ::fork();
  must(owner >= 0, "fork");
  if (owner == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Owner(ring, bytes).serve();
  }
  stay_on(1);
  Reader reader(ring, bytes);
  for (const std::size_t page : {8192, 4096, 512}) measure(reader, page, rounds);
  reader.end();
  ::waitpid(owner, nullptr, 0);
}
