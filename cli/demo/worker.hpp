// SPDX-License-Identifier: Apache-2.0
// What a process of the demo is started with, and how it comes by the weights.
#pragma once

#include "cli/demo/text_model.hpp"

#include <headrace/agent.hpp>

#include <map>
#include <string>
#include <vector>

namespace headrace::cli::demo {

struct WorkerOptions {
  std::string name;
  std::string store;           ///< where the processes find one another
  std::string weights;         ///< address of the `headrace serve` that has them; empty: made here, at random
  std::string packages;        ///< folder of the model's packages
  std::string device = "cpu";  ///< for the model and its cache: "cpu", "cuda:1"
  std::string folder;          ///< for the pulled file
  std::vector<std::string> backends;
  std::int64_t page_tokens = 16;
  std::int64_t pages = 0;
  std::size_t chunk_tokens = 256;
  bool retry = false;                          ///< a peer that is lost is waited for
  bool go_on = false;                          ///< else its texts end, and the others go on
  std::map<std::string, std::string> options;  ///< of the agent
};

/// Runs `headrace pull` for the weights, if they are to come from somewhere; opens packages and weights.
Result<TextModel> open_model(const WorkerOptions& options);
/// An agent in the store's namespace.
Result<Agent> open_agent(const WorkerOptions& options);
/// Publishes the agent, and tells the front that this worker is there.
Result<void> report_ready(Agent& agent);

/// Each runs until the process is ended, or until a peer is lost that it cannot do without.
Result<void> run_prefill_worker(const WorkerOptions& options);
Result<void> run_decode_worker(const WorkerOptions& options);

}  // namespace headrace::cli::demo
