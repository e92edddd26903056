// SPDX-License-Identifier: Apache-2.0
// `headrace pull`: copies tensors that another process serves into a file.
#include "cli/command.hpp"
#include "cli/common/checksum.hpp"
#include "cli/common/descriptor_limit.hpp"
#include "cli/common/number_option.hpp"
#include "cli/common/output_file.hpp"
#include "cli/common/quiet_notice.hpp"
#include "cli/common/table.hpp"
#include "cli/common/tcp_door.hpp"
#include "cli/common/text.hpp"
#include "cli/pull/pull_plan.hpp"
#include "cli/pull/tensor_mover.hpp"

#include <headrace/agent.hpp>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

namespace headrace::cli {
namespace {

struct PullArguments {
  std::string address;
  std::vector<std::string> names;
  std::string output;
  bool anew = false;
  bool resume = false;  // the default; the flag only states it
  bool force = false;
  bool list = false;
  std::vector<std::string> backends;
  double timeout_seconds = 30;
  std::string store;
  bool sync = false;
  bool explain = false;
  bool json = false;

  [[nodiscard]] Timeout patience() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(timeout_seconds));
  }
};

std::string own_name() { return fmt::format("pull-{}-{:08x}", ::getpid(), std::random_device()()); }

/// The error of a transfer, with the peer, and with what to do next.
Error in_transfer(Error error, const std::string& peer, const PullArguments& wanted) {
  const bool kept = error.code != Code::corrupt;
  const std::string place = wanted.store.empty() ? " at " + wanted.address : "";
  return fail(error.code, "pulling from {}{}: {}{}", peer, place, error.message,
              kept ? ". Complete tensors are kept: run the same command again to continue" : "");
}

std::string one_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Prints what the peer serves, for --list.
void print_list(const PullArguments& wanted, const std::string& peer,
                const std::vector<ServedTensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const ServedTensor& tensor : tensors) bytes += tensor.info.bytes;
  if (wanted.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ServedTensor& tensor : tensors)
      list.push_back({{"name", tensor.info.name},
                      {"dtype", tensor.info.type->name},
                      {"shape", tensor.info.shape},
                      {"bytes", tensor.info.bytes}});
    fmt::print("{}\n", one_line({{"peer", peer}, {"bytes", bytes}, {"tensors", std::move(list)}}));
    return;
  }
  Table table({{"name"}, {"dtype"}, {"shape"}, {"bytes", Table::Align::right}});
  for (const ServedTensor& tensor : tensors)
    table.add({tensor.info.name, std::string(tensor.info.type->name),
               fmt::format("[{}]", fmt::join(tensor.info.shape, ", ")), std::to_string(tensor.info.bytes)});
  fmt::print("{}{} tensor{}, {}, served by {}\n", table.text(), tensors.size(),
             tensors.size() == 1 ? "" : "s", amount_text(bytes), peer);
}

/// Whether the output exists and is what would be pulled; compares checksums. Another file is not
/// overwritten.
///   errors  invalid_argument (another file has the name)
Result<bool> is_there_already(const PullArguments& wanted, const PullPlan& plan) {
  std::error_code none;
  if (wanted.force || !std::filesystem::exists(wanted.output, none) ||
      std::filesystem::is_directory(wanted.output, none))
    return false;
  if (const auto file = formats::TensorFile::open(wanted.output); file.ok() && plan.has_made(*file))
    return true;
  return fail(Code::invalid_argument,
              "{} exists and differs from what {} serves: --force replaces it, or choose another --output",
              wanted.output, wanted.address);
}

void print_report(const PullArguments& wanted, const std::string& peer, const MoveReport& report) {
  const double rate =
      report.transfer_seconds > 0 ? static_cast<double>(report.bytes) / report.transfer_seconds / 1e9 : 0;
  if (wanted.json) {
    nlohmann::ordered_json line{{"output", wanted.output},
                                {"peer", peer},
                                {"tensors", report.tensors},
                                {"bytes", report.bytes},
                                {"kept_tensors", report.kept_tensors},
                                {"kept_bytes", report.kept_bytes},
                                {"seconds", report.seconds},
                                {"GB/s", rate},
                                {"path", fmt::format("{}", fmt::join(report.paths, ", "))}};
    if (wanted.explain) line["explanation"] = report.explanation;
    fmt::print("{}\n", one_line(line));
    return;
  }
  Table table({{"tensors", Table::Align::right},
               {"bytes", Table::Align::right},
               {"seconds", Table::Align::right},
               {"GB/s", Table::Align::right},
               {"path"},
               {"file"}});
  table.add({std::to_string(report.tensors), amount_text(report.bytes), fmt::format("{:.3f}", report.seconds),
             fmt::format("{:.2f}", rate),
             report.paths.empty() ? "-" : fmt::format("{}", fmt::join(report.paths, ", ")), wanted.output});
  fmt::print("{}", table.text());
  if (report.kept_tensors > 0)
    fmt::print("{} tensors, {}, were kept from an earlier run\n", report.kept_tensors,
               amount_text(report.kept_bytes));
  if (wanted.explain) fmt::print("{}\n", wrap(report.explanation));
}

/// Prints the report of an output that exists and is whole.
void print_kept(const PullArguments& wanted, const std::string& peer, const PullPlan& plan) {
  MoveReport report;
  report.kept_tensors = plan.tensors().size();
  report.kept_bytes = plan.tensor_bytes();
  if (wanted.json) return print_report(wanted, peer, report);
  fmt::print(
      "{}\n",
      wrap(fmt::format("{} exists: its {} tensors, {}, have the checksums that {} serves. Nothing was pulled",
                       wanted.output, report.kept_tensors, amount_text(report.kept_bytes), peer)));
}

/// Imports the metadata of the server: by its address, or by its name in a store.
Result<ImportReport> find_server(Agent& agent, const PullArguments& wanted) {
  if (!wanted.store.empty()) return agent.find(wanted.address, wanted.patience());
  auto fetched = agent.fetch_metadata(wanted.address, wanted.patience());
  if (fetched || fetched.code() != Code::invalid_argument) return fetched;
  Error error = std::move(fetched).error();
  error.message += "; to find a server by its name, give the store with --store";
  return error;
}

Result<void> pull(const PullArguments& wanted, const Invocation& invocation) {
  const auto begin = std::chrono::steady_clock::now();
  raise_descriptor_limit();
  formats::FileFormat format = formats::FileFormat::safetensors;
  if (!wanted.list) {
    HEADRACE_CLI_TRY(said, formats::format_of(wanted.output));
    format = said;
  }
  AgentOptions options;
  options.backends = wanted.backends;
  options.store = wanted.store;
  options.options = invocation.options;
  // No peer connects to this process, so its tcp backend listens on loopback only.
  HEADRACE_CLI_CHECK(keep_tcp_door_at("127.0.0.1:0", options.backends, options.options));
  HEADRACE_CLI_TRY(agent, Agent::open(own_name(), std::move(options)));
  std::optional<QuietNotice> notice(
      std::in_place,
      fmt::format("nothing has come from {} for some seconds: waiting, for {} s at most (--timeout)",
                  wanted.address, wanted.timeout_seconds),
      [](const std::string& sentence) { complain(sentence); });
  HEADRACE_CLI_TRY(import, find_server(agent, wanted));
  const std::string& peer = import.peer;
  HEADRACE_CLI_TRY(regions, agent.peer_regions(peer));
  HEADRACE_CLI_TRY(served, read_notes(regions));
  HEADRACE_CLI_TRY(tensors, select_tensors(served.tensors, wanted.names));
  if (wanted.list) {
    print_list(wanted, peer, tensors);
    return {};
  }

  std::string header;
  if (format == formats::FileFormat::safetensors && served.header.value != 0) {
    auto read = read_region(agent, peer, served.header, served.header_bytes, wanted.patience());
    if (!read) return in_transfer(std::move(read).error(), peer, wanted);
    if (checksum(std::as_bytes(std::span(*read))) != served.header_checksum)
      return fail(Code::corrupt, "the file header from {} arrived with a wrong checksum", peer);
    header = std::move(*read);
  }
  HEADRACE_CLI_TRY(plan, PullPlan::make(std::move(tensors), format, header));
  HEADRACE_CLI_TRY(there, is_there_already(wanted, plan));
  if (there) {
    print_kept(wanted, peer, plan);
    return {};
  }
  HEADRACE_CLI_TRY(output,
                   OutputFile::open(wanted.output, plan.file_bytes(), plan.fingerprint(), !wanted.anew));
  if (output.started_over())
    complain(fmt::format("{}.part held other tensors: starting from the beginning", wanted.output));
  plan.write_head(output.bytes());

  Result<MoveReport> report = [&]() -> Result<MoveReport> {
    HEADRACE_CLI_TRY(mover, TensorMover::open(agent, peer, wanted.patience()));
    return mover.move(plan, output, *notice);
  }();
  notice.reset();
  if (!report) return in_transfer(std::move(report).error(), peer, wanted);
  plan.write_rest(output.bytes());
  HEADRACE_CLI_CHECK(output.finish(wanted.sync, wanted.force ? IfTaken::replace : IfTaken::keep));
  report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_report(wanted, peer, *report);
  return {};
}

}  // namespace

void add_pull(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<PullArguments>();
  const Command pull_command =
      app.add_subcommand("pull", "Copy tensors that another process serves into a file");
  pull_command
      .add_option("ADDRESS", wanted->address,
                  "Address that `headrace serve` printed; with --store the server's name")
      .type_name("")
      .required();
  pull_command
      .add_option("NAME", wanted->names, "Names of tensors, or patterns as in a shell; default: all tensors")
      .type_name("");
  pull_command.add_option("-o,--output", wanted->output, "File to write, .safetensors or .npz")
      .type_name("FILE");
  pull_command.add_flag("--force", wanted->force, "Replace an output that exists and differs");
  pull_command.add_flag("--list", wanted->list, "Print the tensors that are served, and pull nothing");
  pull_command.add_flag("--no-resume", wanted->anew,
                        "Start from the beginning; default: continue where a killed pull stopped");
  pull_command.add_flag("--resume", wanted->resume).hide();  // the default; the flag only states it
  pull_command.add_option("--backend", wanted->backends, "Only this backend, shm or tcp; repeatable")
      .type_name("NAME")
      .one_value_a_time();
  pull_command
      .add_option("--timeout", wanted->timeout_seconds,
                  "Most seconds for 16 MiB; after them the peer counts as lost")
      .type_name("SECONDS")
      .check(real_number(0.001, 1e6))
      .show_default();
  pull_command.add_option("--store", wanted->store, "Look the server up in a store, as in etcd://host:port")
      .type_name("URL");
  pull_command.add_flag("--sync", wanted->sync, "Flush the file to the disk before it gets its name");
  pull_command.add_flag("--explain", wanted->explain, "Print which path was chosen, and why not another");
  pull_command.add_flag("--json", wanted->json, "Print the result as one line of JSON");
  pull_command.footer(
      "Tensors are written to FILE.part, and each is compared with its checksum. FILE appears when all are "
      "there.\n"
      "A FILE that exists is not changed: if it has the wanted tensors, the pull succeeds, else it fails.\n"
      "`seconds` is the time of the command, GB/s the rate while tensors moved.\n"
      "--json prints one object: output, peer, tensors, bytes, kept_tensors, kept_bytes, seconds, GB/s, "
      "path; with\n"
      "--list: peer, bytes, tensors (each: name, dtype, shape, bytes).\n"
      "Examples:\n"
      "  headrace pull 127.0.0.1:40213 --list\n"
      "  headrace pull 127.0.0.1:40213 -o copy.safetensors\n"
      "  headrace pull 127.0.0.1:40213 'model.layers.0.*' lm_head.weight -o part.safetensors\n"
      "  headrace pull 10.0.0.7:7000 -o arrays.npz --backend tcp --explain\n"
      "  headrace pull llama --store etcd://10.0.0.1:2379 -o copy.safetensors"

  );
  pull_command.callback([wanted, &invocation] {
    if (wanted->output.empty() && !wanted->list) refuse_without("--output FILE, or --list,");
    if (wanted->anew && wanted->resume) refuse_together("--resume", "--no-resume");
    invocation.action = [wanted, &invocation] { return pull(*wanted, invocation); };
  });
}

}  // namespace headrace::cli
