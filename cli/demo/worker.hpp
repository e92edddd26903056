// SPDX-License-Identifier: Apache-2.0
// The options of a worker of the demo, and how it gets the weights.
#pragma once

#include "cli/demo/text_model.hpp"

#include <headrace/agent.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli::demo {

struct WorkerOptions {
  std::string name;
  std::string store;     ///< the store in which the processes find one another
  std::string weights;   ///< address of the `headrace serve` that has them; empty: made here from a seed
  std::string packages;  ///< folder of the model's packages
  std::string device = "cpu";  ///< of the model and its cache: "cpu", "cuda:1"
  std::string folder;          ///< the folder for the pulled file
  std::vector<std::string> backends;
  std::int64_t page_tokens = 16;
  std::int64_t pages = 0;
  std::size_t chunk_tokens = 256;
  Rank rank;  ///< of a decode worker; `of` of the prefill worker, too: how many ranks share the heads
  int expert_ranks = 0;  ///< not 0: the decode workers are so many ranks that share the experts; `rank` has
                         ///< the number
  bool retry = false;    ///< wait for a lost peer to restart
  bool go_on = false;    ///< without retry: end the lost peer's texts, continue the others
  std::map<std::string, std::string> options;  ///< of the agent
};

/// A file that is removed with this object. Without a path there is none.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs `headrace pull`. Without a server of weights there is no file.
Result<TemporaryFile> pull_weights(const WorkerOptions& options);
/// Runs `headrace pull` if the weights come from a server; opens packages and weights.
Result<TextModel> open_model(const WorkerOptions& options);
/// An agent in the store's namespace.
Result<Agent> open_agent(const WorkerOptions& options);
/// Publishes the agent and tells the front that this worker is ready.
Result<void> report_ready(Agent& agent);

/// Returns the error once the demo ends, or after a while: the rank that died shall be seen first, because
/// the front names the process that it sees end.
[[nodiscard]] Error after_the_end(Error why);

/// Each runs until a signal ends the process, or until a peer is lost that it needs.
Result<void> run_prefill_worker(const WorkerOptions& options);
Result<void> run_decode_worker(const WorkerOptions& options);

}  // namespace headrace::cli::demo
