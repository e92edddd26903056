// SPDX-License-Identifier: Apache-2.0
// Requests to several peers that are one: they are posted, waited for, canceled and ended together.
//
// Each part is a request like any other, with a path, a link and an end of its own. The group counts their
// ends, and ends with the last: then the memory of all is quiet. A part that fails does not stop the others.
#pragma once

#include "engine/request_core.hpp"

namespace headrace::engine {

class RequestGroup final : public Transfer, public Whole, public std::enable_shared_from_this<RequestGroup> {
 public:
  /// `parts`: two or more of one operation, to a peer each, that no other caller posts.
  static std::shared_ptr<RequestGroup> make(std::shared_ptr<const void> engine, const RequestContext& context,
                                            std::vector<std::shared_ptr<RequestCore>> parts);

  Status post(const PostOptions* options) override;
  void cancel() override;
  Result<void> set_indices(const PageIndices& indices, void* stream) override;
  Result<std::uint64_t> check() override;
  [[nodiscard]] Error error() const override;
  [[nodiscard]] std::string explain() const override;
  [[nodiscard]] std::string backend() const override;
  [[nodiscard]] Result<CostEstimate> cost() const override;
  [[nodiscard]] std::vector<PartInfo> parts() const override;
  bool help() override;

  void part_ended(std::size_t number, Status status) override;

 private:
  RequestGroup(std::shared_ptr<const void> engine, const RequestContext& context,
               std::vector<std::shared_ptr<RequestCore>> parts);
  Status post_parts(const PostTimes& times, const PostOptions* options, bool& refused);
  void settle_capture(std::uint64_t post);
  void cancel_parts();
  void leave();
  void set_outcome(Status status);

  const std::vector<std::shared_ptr<RequestCore>> parts_;
  std::string peers_;  ///< names, with commas

  std::atomic<std::size_t> running_{0};  ///< parts without an end, and the thread that posts
  std::shared_ptr<RequestGroup> keep_;   ///< this, from post to end: the parts tell it of theirs
  std::size_t failed_part_ = 0;          ///< whose failure the outcome is
};

}  // namespace headrace::engine
