// SPDX-License-Identifier: Apache-2.0
// Moves pages between two processes repeatedly. It measures only the time from post to the end of wait, and
// compares every byte after each iteration.
#pragma once

#include "cli/bench/bench_side.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/bench/peer_process.hpp"

#include <functional>

namespace headrace::cli {

struct PageCase {
  Op op = Op::read;
  std::uint64_t page_bytes = 0;
  std::uint64_t count = 0;    ///< pages that one iteration moves
  bool scattered = true;      ///< choose pages of both buffers at random, else in order
  unsigned threads = 1;       ///< threads that share the pages of an iteration
  unsigned in_flight = 1;     ///< requests that each thread posts before it waits for them
  unsigned posts = 1;         ///< posts of each request in an iteration, one after the other
  bool new_requests = false;  ///< make new requests for each iteration; else post the same ones again
  unsigned warm_up = 3;
  unsigned iterations = 15;
};

struct PageSamples {
  std::vector<double> seconds;        ///< from the first post to the end of the last wait, one an iteration
  std::vector<double> first_seconds;  ///< of single pages: the first move of each page after the whole buffer
                                      ///< was filled
  std::vector<double> make_seconds;   ///< times to make the requests of an iteration, without connecting
  std::string path;                   ///< the backend that carried the requests
  std::string explanation;            ///< Request::explain() of one of them
  std::uint64_t transfers = 0;        ///< transfers that moved new data
  std::uint64_t right = 0;            ///< of these: every byte was compared afterwards and is right

  [[nodiscard]] bool checked() const { return transfers > 0 && right == transfers; }
};

struct NotificationSamples {
  std::vector<double> seconds;  ///< of each round trip
  std::uint64_t right = 0;      ///< of these: the answer is equal to the message that was sent

  [[nodiscard]] bool checked() const { return !seconds.empty() && right == seconds.size(); }
};

class PageBench {
 public:
  /// Called between transfers.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t of)>;

  /// Starts the peer process and connects the two. If `there` has vram without a GPU (-1), the peer uses GPU
  /// 1 if the machine has two, else GPU 0.
  static Result<PageBench> open(const BenchSetup& here, BenchSetup there);

  /// Measures requests of many pages.
  ///   errors  invalid_argument (more pages than the buffer has), corrupt (a page has wrong bytes; the text
  ///   names
  ///           it), those of a request
  Result<PageSamples> pages(const PageCase& plan, const Progress& progress);
  /// Measures one page a request, one request at a time. A round posts a set of requests, each with another
  /// page; the set is posted several times.
  Result<PageSamples> single(const PageCase& plan, const Progress& progress);
  /// Measures the round trip of a notification that the peer sends back. Spinning: both processes poll; else
  /// both block in wait.
  Result<NotificationSamples> notifications(unsigned rounds, bool spinning);
  /// The cores for the two waiting threads: this one and the peer's first. One core or two makes a factor of
  /// seven for processes that take turns, so the scheduler must not choose.
  enum class Cores { one, two };
  ///   errors  not_supported (this process may not use so many cores)
  Result<void> place(Cores cores);
  /// Measures the same round trip with two eventfds alone.
  Result<NotificationSamples> eventfds(unsigned rounds);

 private:
  PageBench(PeerProcess peer, BenchSide side, std::string peer_name, const Region& remote)
      : peer_(std::move(peer)),
        side_(std::move(side)),
        peer_name_(std::move(peer_name)),
        remote_(remote.id),
        remote_kind_(remote.kind) {}

  struct Seeds {
    std::uint64_t source = 0, target = 0, pages = 0;
  };
  Result<void> refill(const PageCase& plan, const Seeds& seeds);
  /// Compares all bytes of the target and counts the transfer as right.
  ///   errors  corrupt (which page, and where)
  Result<void> check(const PageCase& plan, const Seeds& seeds, std::uint64_t slots, PageSamples& samples);
  [[nodiscard]] bool by_gpu() const;

  PeerProcess peer_;
  BenchSide side_;
  std::string peer_name_;
  RegionId remote_;
  MemoryKind remote_kind_;
};

}  // namespace headrace::cli
