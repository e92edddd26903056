// SPDX-License-Identifier: Apache-2.0
// The client of `headrace bench fabric`: posts, checks the bytes at both sides, and measures.
#pragma once

#include "cli/bench/fabric_side.hpp"
#include "cli/common/file_descriptor.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

enum class FabricKind { write, read, write_pages, read_pages, scatter, immediate };

/// "write", "write-pages", ...
[[nodiscard]] std::string_view fabric_kind_name(FabricKind kind);

/// A post for each group: `count` pages, targets or immediates; a write or read has one.
struct FabricCase {
  FabricKind kind = FabricKind::write;
  std::uint64_t page_bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t posts = 1;  ///< of each group, in flight at once, all of the same pages
};

/// What was measured. A sample is what is in flight at once.
struct FabricFigure {
  std::vector<double> seconds;                     ///< from the first post to the last end
  std::optional<double> far_seconds;               ///< of one, by the server's counter; reads have none
  std::map<std::string, std::uint64_t> nic_bytes;  ///< by network card of this side
  std::uint64_t bytes = 0, operations = 0;         ///< of one sample, over all groups
};

class FabricClient {
 public:
  /// Opens a fabric and meets the server.
  [[nodiscard]] static Result<std::unique_ptr<FabricClient>> open(const FabricSideOptions& options,
                                                                  const std::string& server);

  [[nodiscard]] FabricSide& side() { return side_; }
  [[nodiscard]] const std::vector<std::string>& far_groups() const { return far_groups_; }
  [[nodiscard]] bool both_spin() const { return side_.spins() && far_spins_; }

  /// Posts twice, and compares every byte of the target. Returns the seconds of one post.
  ///   errors  corrupt (which byte), those of the posts and of the server
  [[nodiscard]] Result<double> verify(const FabricCase& wanted);
  [[nodiscard]] Result<void> verify_barrier();

  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  struct Effort {
    double seconds = 0.5;                     ///< for all samples
    std::optional<unsigned> iterations = {};  ///< instead
    Progress progress = {};
  };
  /// Verifies, then measures with new data, and compares that, too.
  [[nodiscard]] Result<FabricFigure> measure(const FabricCase& wanted, const Effort& effort);
  /// An immediate there, and one back.
  [[nodiscard]] Result<FabricFigure> round_trips(const Effort& effort);
  struct Idle {
    double here = 0, there = 0;  ///< share of a core
  };
  /// Nothing is posted for so long, with a link to the server.
  [[nodiscard]] Result<Idle> idle(double seconds);

 private:
  FabricClient(FabricSide side, FileDescriptor socket, std::string server)
      : side_(std::move(side)), socket_(std::move(socket)), server_(std::move(server)) {}
  Result<void> greet();
  Result<Json> ask(const Json& order);

  Result<void> prepare(const FabricCase& wanted);
  Result<void> fill();
  Result<void> check();
  Result<FabricWork> post(std::size_t group, const FabricPost& options);
  Result<void> run_once();
  Result<std::vector<double>> run_often(std::uint64_t rounds, const Progress& progress);
  Result<void> begin_counting(std::uint64_t rounds);
  Result<std::optional<double>> end_counting();
  Result<std::vector<double>> echoes(std::uint64_t rounds);
  Result<void> wait_echo(const FabricExpectation& expected, std::uint64_t round);
  [[nodiscard]] std::map<std::string, std::uint64_t> nic_bytes();
  [[nodiscard]] static std::uint64_t rounds_for(const Effort& effort, double one_takes);

  FabricSide side_;
  const FileDescriptor socket_;
  const std::string server_;
  std::vector<std::string> far_groups_;
  bool far_spins_ = false;
  FabricPeer peer_;
  std::uint32_t last_immediate_ = 0;

  // The case of now.
  FabricCase case_;
  FabricPattern pattern_;
  std::optional<Immediate> counted_;
  std::vector<FabricDescriptor> descriptors_;  // by group, as the next two
  std::vector<PagePairs> pairs_;               // from here to there
  std::vector<std::vector<FabricTarget>> targets_;
};

}  // namespace headrace::cli
