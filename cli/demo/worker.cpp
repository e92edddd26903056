// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/worker.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/processes.hpp"
#include "cli/demo/stop_signals.hpp"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace headrace::cli::demo {

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<TemporaryFile> pull_weights(const WorkerOptions& options) {
  if (options.weights.empty()) return TemporaryFile();
  TemporaryFile file(fmt::format("{}/{}-{}.safetensors", options.folder, options.name, ::getpid()));
  std::vector<std::string> arguments{"pull", options.weights, "--output", file.path(), "--json"};
  for (const std::string& backend : options.backends)
    arguments.insert(arguments.end(), {"--backend", backend});
  HEADRACE_CLI_CHECK(run_command(arguments));
  return file;
}

Result<TextModel> open_model(const WorkerOptions& options) {
  HEADRACE_CLI_TRY(file, pull_weights(options));  // removed on return: the weights are in memory
  return TextModel::open({options.packages, file.path()}, options.device);
}

Result<Agent> open_agent(const WorkerOptions& options) {
  AgentOptions agent;
  agent.backends = options.backends;
  agent.store = options.store;
  agent.options = options.options;
  return Agent::open(options.name, std::move(agent));
}

Result<void> report_ready(Agent& agent) {
  HEADRACE_CLI_CHECK(agent.publish());
  HEADRACE_CLI_CHECK(await_peer(agent, front_name, std::chrono::seconds(30)));
  return send(agent, front_name, {{"type", "ready"}});
}

Error after_the_end(Error why) {
  using namespace std::chrono_literals;
  constexpr auto patience = 3s;  // longer than the front looks for the first process that died
  const auto end = std::chrono::steady_clock::now() + patience;
  while (StopSignals::number() == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(10ms);
  return why;
}

}  // namespace headrace::cli::demo
