// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/collectives_doctor.hpp"

#include "cli/command.hpp"
#include "cli/common/backend_report.hpp"
#include "cli/common/table.hpp"
#include "cli/common/tuning_report.hpp"
#include "cli/doctor/collectives_survey.hpp"

#include <headrace/agent.hpp>
#include <headrace/version.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace headrace::cli {
namespace {

/// Opens a communicator of one rank and adds.
Finding try_communicator() {
  Finding finding{"a communicator", Finding::State::good, "opens, and added its elements", {}};
  const auto bad = [&finding](const Error& error) {
    finding.state = Finding::State::bad;
    finding.value = error.message;
    finding.advice = "`headrace doctor` tells whether an agent works here; HEADRACE_LOG=debug logs more";
    return finding;
  };
  auto comm = Comm::open({});
  if (!comm) return bad(comm.error());
  std::vector<float> data{1, 2};
  if (auto work = comm->all_reduce(data, ReduceOp::sum); !work) return bad(work.error());
  if (data != std::vector<float>{1, 2})
    return bad({Code::corrupt, "the sum of one rank's elements is not these elements"});
  return finding;
}

Json json_of(const CommBackendInfo& backend) {
  Json json{{"name", backend.name},         {"version", backend.version},
            {"from", backend.from},         {"devices", backend.devices},
            {"features", backend.features}, {"usable", backend.refusal.empty()}};
  if (!backend.refusal.empty()) json["refusal"] = backend.refusal;
  return json;
}

Json json_of(const Result<CommTuning>& tuning) {
  if (!tuning) return {{"error", tuning.error().message}};
  Json json{{"from", tuning->from}, {"entries", Json::array()}};
  for (const CommTuningEntry& entry : tuning->entries) json["entries"].push_back(tuning_entry_json(entry));
  return json;
}

void print_collectives_json(const std::vector<Finding>& findings,
                            const std::vector<CommBackendInfo>& backends, const Result<CommTuning>& tuning,
                            const std::vector<OptionInfo>& options, bool works) {
  Json report{{"version", HEADRACE_VERSION}, {"works", works}, {"findings", Json::array()}};
  for (const Finding& finding : findings)
    report["findings"].push_back({{"name", finding.name},
                                  {"state", state_name(finding.state)},
                                  {"value", finding.value},
                                  {"advice", finding.advice}});
  report["comm_backends"] = Json::array();
  for (const CommBackendInfo& backend : backends) report["comm_backends"].push_back(json_of(backend));
  report["comm_tuning"] = json_of(tuning);
  report["options"] = Json::array();
  for (const OptionInfo& option : options) report["options"].push_back(option_json(option));
  fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_collectives(const std::vector<Finding>& findings, const Result<CommTuning>& tuning,
                       const std::vector<OptionInfo>& options) {
  Table table({{"what"}, {"state"}, {"found"}});
  for (const Finding& finding : findings)
    table.add(
        {finding.name, std::string(state_name(finding.state)),
         finding.advice.empty() ? finding.value : fmt::format("{}\n-> {}", finding.value, finding.advice)});
  fmt::print("headrace " HEADRACE_VERSION ", collectives\n\n{}", table.text());
  if (tuning)
    fmt::print("\nbackend auto on GPUs: the first entry that holds decides ({})\n{}", tuning->from,
               tuning_table(tuning->entries).text());
  fmt::print("\noptions\n{}", option_table(options).text());
}

/// The interpreter that option `python` names.
Result<std::string> interpreter(const Invocation& invocation) {
  HEADRACE_CLI_TRY(options, list_options(invocation.options));
  const auto at = std::ranges::find(options, "python", &OptionInfo::name);
  return at != options.end() ? at->value : std::string("python3");
}

}  // namespace

Result<void> survey_collectives(const Invocation& invocation, bool json) {
  HEADRACE_CLI_TRY(python, interpreter(invocation));
  HEADRACE_CLI_TRY(options, list_comm_options());
  std::vector<Finding> findings{try_communicator()};
  const bool works = findings.front().state != Finding::State::bad;
  const auto add = [&findings](std::vector<Finding> more) {
    std::ranges::move(more, std::back_inserter(findings));
  };
  const std::vector<CommBackendInfo> backends = survey_comm_backends();
  for (const CommBackendInfo& backend : backends) findings.push_back(finding_of(backend));
  HEADRACE_CLI_TRY(tuning_path, comm_tuning_path());
  const Result<CommTuning> tuning = read_comm_tuning();
  findings.push_back(finding_of(tuning, tuning_path));
  add(survey_torch(python));
  add(survey_launchers(list_launcher_variables(), CommOptions::from_environment()));
  json ? print_collectives_json(findings, backends, tuning, options, works)
       : print_collectives(findings, tuning, options);
  if (works) return {};
  return fail(Code::backend_failed, "communicators do not work here: {}", findings.front().value);
}

}  // namespace headrace::cli
