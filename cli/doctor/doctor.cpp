// SPDX-License-Identifier: Apache-2.0
// `headrace doctor`: reports what works on this machine, which backends load, and how to repair the rest.
#include "cli/command.hpp"
#include "cli/common/backend_report.hpp"
#include "cli/common/table.hpp"
#include "cli/common/text.hpp"
#include "cli/doctor/collectives_doctor.hpp"
#include "cli/doctor/fabric_report.hpp"
#include "cli/doctor/machine_probe.hpp"
#include "cli/doctor/model_doctor.hpp"
#include "cli/doctor/path_survey.hpp"

#include <headrace/comm.hpp>
#include <headrace/model.hpp>
#include <headrace/topology.hpp>
#include <headrace/version.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

namespace headrace::cli {
namespace {

using State = Finding::State;

/// Moves one page inside an agent and compares it: this uses every part of the core.
Finding try_core(const Invocation& invocation) {
  Finding finding{"an agent", State::good, {}, {}};
  const auto bad = [&finding](const Error& error) {
    finding.state = State::bad;
    finding.value = error.message;
    finding.advice = "see the lines above; HEADRACE_LOG=debug logs more";
    return finding;
  };
  AgentOptions options;
  options.options = invocation.options;
  auto agent = Agent::open(fmt::format("doctor-{}", ::getpid()), std::move(options));
  if (!agent) return bad(agent.error());
  constexpr std::uint64_t page = 4096;
  auto region = agent->allocate(2 * page);
  if (!region) return bad(region.error());
  const std::span<std::byte> bytes = region->bytes();
  for (std::uint64_t i = 0; i < page; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  const auto from = agent->prepare(UniformPages{region->id, 0, 0, page, 1});
  const auto to = agent->prepare(agent->name(), UniformPages{region->id, page, 0, page, 1});
  if (!from) return bad(from.error());
  if (!to) return bad(to.error());
  auto request = agent->make_request(Op::write, {*from, *to});
  if (!request) return bad(request.error());
  if (!request->post().ok() || !request->wait(std::chrono::seconds(10)).ok()) return bad(request->error());
  if (std::memcmp(bytes.data(), bytes.data() + page, page) != 0)
    return bad({Code::corrupt, "a page that was moved inside one agent has arrived with wrong bytes"});
  finding.value = fmt::format("opens, and moved a page to itself over {}", request->backend());
  return finding;
}

std::vector<Finding> look_at_backends(const std::vector<BackendInfo>& backends) {
  std::vector<Finding> findings;
  for (const BackendInfo& backend : backends) {
    Finding finding{"backend " + backend.name, State::good, {}, {}};
    if (backend.loaded && backend.refusal.empty()) {
      finding.value =
          fmt::format("{}: {}; {}", backend.version, kinds_text(backend), abilities_text(backend));
    } else {
      finding.state = State::warning;
      finding.value = backend.loaded ? "loaded, but cannot be opened" : "refused";
      finding.advice = backend.refusal;
    }
    findings.push_back(std::move(finding));
  }
  if (std::any_of(backends.begin(), backends.end(), [](const BackendInfo& b) { return b.remote; }))
    return findings;
  if (std::any_of(backends.begin(), backends.end(), [](const BackendInfo& b) { return b.loaded; }))
    findings.push_back(
        {"backends", State::bad, "no backend that reaches a peer can be opened", "see the lines above"});
  else
    findings.push_back({"backends", State::bad, "no backend was loaded",
                        "backends are in the folder `backends` beside libheadrace.so, and in the folders of "
                        "option plugin_path: install all of Headrace"});
  return findings;
}

/// Whether a port that every agent opens asks its peers for a secret.
Finding look_at_secret(const std::vector<OptionInfo>& options) {
  const auto value = [&](const char* name) {
    const auto at = std::ranges::find(options, name, &OptionInfo::name);
    return at != options.end() ? at->value : std::string();
  };
  Finding finding{"secret", State::good, "set: peers prove that they know it", {}};
  if (!value("auth_token").empty()) return finding;
  if (const std::string file = value("auth_token_file"); !file.empty()) {
    struct stat entry {};
    if (::stat(file.c_str(), &entry) != 0 || (entry.st_mode & 077) == 0) return finding;
    finding.state = State::warning;
    finding.value =
        fmt::format("set, but other users can read {} (mode {:04o})", file, entry.st_mode & 07777);
    finding.advice = fmt::format("chmod 600 {}", file);
    return finding;
  }
  finding.value = "none: every agent that reaches a port of ours is believed";
  const std::string listens = value("tcp.listen");
  if (listens.starts_with("127.") || listens.starts_with("localhost")) return finding;
  finding.state = State::warning;
  finding.value +=
      "; the data port of tcp is on every interface, except of agents that listen for metadata on loopback "
      "and have no store";
  finding.advice =
      "on a network that others use, give all agents the same auth_token (HEADRACE_AUTH_TOKEN) or "
      "auth_token_file; on one host, set tcp.listen=127.0.0.1:0 (HEADRACE_TCP_LISTEN)";
  return finding;
}

Result<void> examine(const Invocation& invocation, bool json) {
  std::vector<Finding> findings = probe_machine();
  const DetectedTopology topology = detect_topology();
  const std::vector<InterfaceAddress> addresses = read_addresses();
  std::ranges::move(show_fabric(topology, addresses), std::back_inserter(findings));
  HEADRACE_CLI_TRY(options, list_options(invocation.options));
  findings.push_back(look_at_secret(options));
  HEADRACE_CLI_TRY(model_options, list_model_options());
  options.insert(options.end(), model_options.begin(), model_options.end());
  HEADRACE_CLI_TRY(comm_options, list_comm_options());
  options.insert(options.end(), comm_options.begin(), comm_options.end());
  for (const OptionInfo& option : options)
    if (option.name == "runtime_dir")
      findings.push_back(
          probe_runtime_folder(option.value.empty() ? default_runtime_folder() : option.value));
  HEADRACE_CLI_TRY(backends, list_backends(invocation.options));
  std::vector<Finding> ours = look_at_backends(backends);
  ours.push_back(try_core(invocation));
  std::move(ours.begin(), ours.end(), std::back_inserter(findings));
  const bool works =
      findings.back().state != State::bad &&
      std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.name == "backends"; });
  if (json) {
    Json report{{"version", HEADRACE_VERSION}, {"works", works}};
    for (const Finding& finding : findings)
      report["findings"].push_back({{"name", finding.name},
                                    {"state", state_name(finding.state)},
                                    {"value", finding.value},
                                    {"advice", finding.advice}});
    report["fabric"] = fabric_json(topology, addresses);
    report["backends"] = Json::array();
    for (const BackendInfo& backend : backends) report["backends"].push_back(backend_json(backend));
    report["options"] = Json::array();
    for (const OptionInfo& option : options) report["options"].push_back(option_json(option));
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    Table table({{"what"}, {"state"}, {"found"}});
    for (const Finding& finding : findings)
      table.add(
          {finding.name, std::string(state_name(finding.state)),
           finding.advice.empty() ? finding.value : fmt::format("{}\n-> {}", finding.value, finding.advice)});
    fmt::print("headrace " HEADRACE_VERSION "\n\n{}\noptions\n{}", table.text(),
               option_table(options).text());
    fmt::print("\n{}\n",
               works ? "Headrace works here." : "Headrace does not work here: see the lines marked bad.");
  }
  if (!works)
    return fail(Code::backend_failed, "the core does not work on this machine: see the lines marked bad");
  return {};
}

}  // namespace

void add_doctor(const Command& app, Invocation& invocation) {
  const Command doctor =
      app.add_subcommand("doctor", "Check this machine: what works, what does not, and what to install");
  auto exam = std::make_shared<DeviceExam>();
  auto paths = std::make_shared<bool>(false), collectives = std::make_shared<bool>(false);
  doctor.add_flag("--json", exam->json, "Print JSON");
  doctor.add_flag("--paths", *paths,
                  "Measure which path pages take between each pair of memory kinds, and how fast it is");
  doctor.add_flag("--collectives", *collectives,
                  "Show what serves communicators: torch's binding, backends, variables of launchers");
  doctor.add_option("--device", exam->device, "Check torch on this device instead: cpu, cuda or cuda:1")
      .type_name("DEVICE");
  doctor.add_option("--model", exam->model, "Run this compiled model once on generated inputs")
      .type_name("FILE");
  doctor.footer(
      "The exit code is 0 if pages can be moved on this machine.\n"
      "With --device or --model it is 0 if every check passes. These two print JSON, except to a terminal "
      "without --json.\n"
      "Examples:\n"
      "  headrace doctor\n"
      "  headrace doctor --option tcp.sockets=8      the options, with this one set\n"
      "  headrace doctor --json\n"
      "  headrace doctor --paths                     the path for each pair of memory kinds, measured "
      "here\n"
      "  headrace doctor --collectives               which backends move elements of communicators here\n"
      "  headrace doctor --device cpu --model model.pt2      check that torch and a compiled model work "
      "here");
  doctor.callback([exam, paths, collectives, &invocation] {
    if (*paths && *collectives) refuse_together("--paths", "--collectives");
    invocation.action = [exam, paths, collectives, &invocation] {
      if (*paths) return survey_paths(invocation, exam->json);
      if (*collectives) return survey_collectives(invocation, exam->json);
      return exam->wanted() ? examine_device(*exam, invocation) : examine(invocation, exam->json);
    };
  });
}

}  // namespace headrace::cli
