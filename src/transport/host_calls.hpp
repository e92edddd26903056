// SPDX-License-Identifier: Apache-2.0
// What a piece of work on a link wants to tell the host, said when the work has let go of its locks: the
// contract forbids to call the host with a lock held.
//
// Make one before taking any lock. While one lives, `disconnect` waits: after it returns the host hears
// nothing of the link any more.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::transport {

class HostCalls {
 public:
  /// A transport's link derives from it.
  class Link {
   public:
    explicit Link(plugin::Host host) : host_(host) {}

    // Called by HostCalls, with no lock held.
    /// Gives the host the messages whose turn has come.
    virtual void deliver() = 0;
    /// The end, unless it has ended before.
    virtual void lose(Status status, std::string why) = 0;

   protected:
    virtual ~Link() = default;
    /// For `disconnect`: returns when no HostCalls of the link lives.
    void wait_for_host_calls() const;

   private:
    friend class HostCalls;
    const plugin::Host host_;
    std::atomic<unsigned> inside_{0};  // HostCalls alive
  };

  explicit HostCalls(Link& link) : link_(link) { link_.inside_.fetch_add(1); }
  ~HostCalls() {
    flush();
    // Nothing of the link may be touched after this: `disconnect` waits for it, and then the link may go.
    link_.inside_.fetch_sub(1);
  }
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  /// Says what there is to say so far. Not with a lock held.
  void flush();

  void completed(std::uint64_t token, Status status, std::string text) {
    ends_.push_back({token, status, std::move(text)});
  }
  /// Messages may be ready for delivery.
  void deliver() { deliver_ = true; }
  /// The link is broken. The first reason stays.
  void lose(Status status, std::string why) {
    if (!loss_) loss_ = Loss{status, std::move(why)};
  }
  void sent(std::uint64_t bytes) { sent_ += bytes; }
  void received(std::uint64_t bytes) { received_ += bytes; }
  void refused_chunk() { ++refused_; }

 private:
  struct End {
    std::uint64_t token;
    Status status;
    std::string text;
  };
  struct Loss {
    Status status;
    std::string why;
  };

  Link& link_;
  std::vector<End> ends_;
  std::optional<Loss> loss_;
  bool deliver_ = false;
  std::uint64_t sent_ = 0, received_ = 0, refused_ = 0;
};

}  // namespace headrace::transport
