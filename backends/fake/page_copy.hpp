// SPDX-License-Identifier: Apache-2.0
// Carries out one post: looks at the remote ranges as an owner does, then moves the bytes.
#pragma once

#include "backends/fake/remote_regions.hpp"
#include "backends/fake/request.hpp"
#include "memory/page_cursor.hpp"

#include <string>

namespace headrace::fake {

/// How a post ends.
struct Outcome {
  Status status;
  std::string text;
};

/// Without the network's lock.
class PageCopy {
 public:
  PageCopy(FakeNetwork& network, const Request& request) : network_(network), request_(request) {}

  Outcome run();

 private:
  /// Where the fault script ends the copy; the end of the request if it does not.
  struct Stop {
    PagePosition at;
    Outcome outcome;
  };

  [[nodiscard]] Outcome check();
  [[nodiscard]] Outcome check_page(std::uint64_t page, const Region& region) const;
  [[nodiscard]] Outcome copy();
  [[nodiscard]] Outcome move(const PageRun& run);
  [[nodiscard]] Stop stop() const;
  [[nodiscard]] std::shared_ptr<Region> find(const RemoteRegion& remote);
  [[nodiscard]] bool link_broken() const;
  [[nodiscard]] Outcome broken_at(std::uint64_t page) const;
  [[nodiscard]] Outcome gone_at(std::uint64_t page, const RemoteRegion& remote) const;

  FakeNetwork& network_;
  const Request& request_;
};

}  // namespace headrace::fake
