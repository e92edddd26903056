// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/collectives_survey.hpp"

#include "cli/common/child_ending.hpp"
#include "cli/common/errors.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

extern char** environ;

namespace headrace::cli {
namespace {

using State = Finding::State;
using Json = nlohmann::ordered_json;

constexpr const char* survey_module = "headrace._torch.survey";

struct Said {
  int status;
  std::string out;
};

/// Runs a program of the PATH, and returns what it writes to its standard output.
Result<Said> ask(std::vector<std::string> words) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail(Code::exhausted, "making a pipe: {}", system_text());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int started = ::posix_spawnp(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  Said said{0, {}};
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; started == 0 && (n = ::read(pipe[0], buffer.data(), buffer.size())) > 0;)
    said.out.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(pipe[0]);
  if (started != 0) return fail(Code::not_found, "{} cannot be started: {}", words[0], system_text(started));
  ::waitpid(child, &said.status, 0);
  return said;
}

State state_of(const std::string& name) {
  for (const State state : {State::good, State::note, State::warning})
    if (state_name(state) == name) return state;
  return State::bad;
}

Finding torch_is_unknown(const std::string& why, const std::string& advice) {
  return {"torch", State::note, why, advice};
}

std::vector<Finding> findings_in(const std::string& text) {
  const Json findings = Json::parse(text, nullptr, false);
  if (!findings.is_array()) return {torch_is_unknown("the answer of Python cannot be read", "")};
  std::vector<Finding> all;
  for (const Json& finding : findings)
    all.push_back({finding.value("name", ""), state_of(finding.value("state", "")),
                   finding.value("value", ""), finding.value("advice", "")});
  return all;
}

std::string pair_text(const LauncherVariables& pair) {
  return fmt::format("{}={}, {}={}", pair.rank_name, pair.rank.value_or("(not set)"), pair.size_name,
                     pair.size.value_or("(not set)"));
}

}  // namespace

std::vector<Finding> survey_torch(const std::string& python) {
  const auto said = ask({python, "-m", survey_module});
  if (!said) return {torch_is_unknown(said.error().message, "name an interpreter by --option python=PATH")};
  if (said->status != 0)
    return {torch_is_unknown(
        fmt::format("{} -m {} {}", python, survey_module, ending_text(said->status)),
        fmt::format("install the package of Headrace for {}, or name another interpreter by --option "
                    "python=PATH",
                    python))};
  return findings_in(said->out);
}

std::vector<Finding> survey_launchers(const std::vector<LauncherVariables>& launchers,
                                      const Result<CommOptions>& launched) {
  std::vector<Finding> findings;
  for (const LauncherVariables& pair : launchers)
    if (pair.rank || pair.size)
      findings.push_back({"rank: " + pair.launcher, State::note, pair_text(pair), {}});
  Finding place{"rank", State::note, {}, {}};
  if (launched) {
    place.state = State::good;
    place.value = fmt::format("this process is rank {} of {}, by the first whole pair above; ",
                              launched->rank, launched->size);
    if (launched->size > 1 && launched->meeting.empty()) {
      place.value += "no place where the ranks meet is named";
      place.advice =
          "Python under torchrun needs none; else give a meeting place in the call, or set "
          "MASTER_ADDR and MASTER_PORT";
    } else {
      place.value += launched->size == 1 ? "it needs no meeting place"
                                         : fmt::format("the ranks meet at {}", launched->meeting);
    }
  } else if (launched.code() == Code::not_found) {
    place.value = "no launcher has started this process: a program gives rank, size and meeting place itself";
  } else {
    place.state = State::warning;
    place.value = launched.error().message;
    place.advice = "unset the variable, or set its counterpart";
  }
  findings.push_back(std::move(place));
  return findings;
}

Finding finding_of(const CommBackendInfo& backend) {
  Finding finding{"backend " + backend.name, State::good, {}, backend.refusal};
  if (!backend.refusal.empty()) finding.state = State::note;
  if (backend.version.empty()) {
    finding.value = "cannot be used";
    return finding;
  }
  finding.value = fmt::format("{}, {}; memory of {}; {}", backend.version, backend.from,
                              fmt::join(backend.devices, " and "), fmt::join(backend.features, ", "));
  return finding;
}

Finding finding_of(const Result<CommTuning>& tuning, const std::string& path) {
  Finding finding{"table of auto", State::good, {}, {}};
  if (!tuning) {
    finding.state = State::warning;
    finding.value = tuning.error().message;
    finding.advice = "no communicator of backend auto opens on GPUs while rank 0 reads this file";
    return finding;
  }
  finding.value = fmt::format("{}, {} entries", tuning->from, tuning->entries.size());
  if (tuning->from == path) return finding;
  finding.state = State::note;
  finding.advice = path.empty() ? "`headrace tune --output FILE` measures one for this machine"
                                : fmt::format("`headrace tune` measures one for this machine, into {}", path);
  return finding;
}

}  // namespace headrace::cli
