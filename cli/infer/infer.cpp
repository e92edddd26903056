// SPDX-License-Identifier: Apache-2.0
// `headrace infer`: runs a model on inputs from files, once or several times, and prints the outputs and the
// times.
#include "cli/command.hpp"
#include "cli/common/errors.hpp"
#include "cli/common/number_option.hpp"
#include "cli/infer/isolated.hpp"
#include "cli/model/model_run.hpp"
#include "cli/model/model_text.hpp"
#include "formats/names.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

namespace headrace::cli {
namespace {

struct InferArguments : ModelRequest {
  std::string output;
  std::uint64_t runs = 1;
  std::optional<std::uint64_t> warmup;
  std::size_t threads = 1;
  bool whole = false;
  bool json = false;
  bool force = false;
  bool isolated = false;

  /// 1 if runs are measured several times: the first run of a thread takes longer than the others.
  [[nodiscard]] std::uint64_t warmup_runs() const { return warmup.value_or(runs * threads > 1 ? 1 : 0); }
};

using Clock = std::chrono::steady_clock;

std::uint64_t since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

/// One calling thread: warms up, then measures the time of each run.
struct Caller {
  Clock::time_point warm;  ///< when the first measured run began
  std::vector<std::uint64_t> nanoseconds;
  std::vector<Tensor> outputs;
  std::optional<Error> error;

  void work(Model& model, const std::vector<TensorView>& inputs, std::uint64_t warmup, std::uint64_t runs) {
    nanoseconds.reserve(runs);
    for (std::uint64_t i = 0; i < warmup + runs; ++i) {
      const auto begin = Clock::now();
      if (i == warmup) warm = begin;
      if (auto ran = model.run(inputs, outputs); !ran) {
        error = std::move(ran).error();
        return;
      }
      if (i >= warmup) nanoseconds.push_back(since(begin));
    }
  }
};

ModelJson report_of(const InferArguments& wanted, Model& model, const std::vector<std::uint64_t>& nanoseconds,
                    double seconds) {
  const ModelTiming timing = model.timing();
  const ModelMemory memory = model.memory();
  ModelJson report{{"model", wanted.path}, {"device", device_text(model.info().device)}};
  report["load_ms"] = static_cast<double>(timing.load_ns) / 1e6;
  report["unpack_ms"] = static_cast<double>(timing.unpack_ns) / 1e6;
  report["unpacked"] = timing.unpacked;
  report["runs"] = nanoseconds.size();
  report["warmup"] = wanted.warmup_runs();
  report["threads"] = wanted.threads;
  report["latency_us"] = latency_json(nanoseconds);
  report["runs_per_second"] = static_cast<double>(nanoseconds.size()) / seconds;
  report["memory"] = {
      {"package_bytes", memory.package_bytes},         {"constant_bytes", memory.constant_bytes},
      {"process_bytes", memory.process_bytes},         {"device_bytes", memory.device_bytes},
      {"device_peak_bytes", memory.device_peak_bytes}, {"device_used_bytes", memory.device_used_bytes}};
  return report;
}

Result<void> infer(InferArguments wanted, const Invocation& invocation) {
  if (!wanted.dimensions.empty() && !wanted.generate)
    return fail(
        Code::invalid_argument,
        "--dim {}: it is for generated inputs: add --generate, or leave --dim out, because tensors from "
        "files have their lengths",
        wanted.dimensions.front());
  wanted.options.options = invocation.options;
  wanted.options.runners = wanted.threads;
  const IfTaken if_taken = wanted.force ? IfTaken::replace : IfTaken::keep;
  if (!wanted.output.empty()) HEADRACE_CLI_CHECK(check_output(wanted.output, if_taken));
  HEADRACE_CLI_CHECK(check_input_names(wanted));
  HEADRACE_CLI_TRY(model, Model::open(wanted.path, wanted.options));
  HEADRACE_CLI_TRY(inputs, gather_inputs(model, wanted));
  const std::vector<TensorView> views = inputs.views();
  HEADRACE_CLI_CHECK(model.check(views));

  std::vector<Caller> callers(wanted.threads);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < callers.size(); ++i)
      threads.emplace_back([&, i] { callers[i].work(model, views, wanted.warmup_runs(), wanted.runs); });
    callers[0].work(model, views, wanted.warmup_runs(), wanted.runs);
  }
  // Measured from the first caller that has warmed up. Callers that still warm up then slow it a little.
  const auto first = std::ranges::min_element(callers, {}, &Caller::warm);
  const double seconds = static_cast<double>(since(first->warm)) / 1e9;
  std::vector<std::uint64_t> nanoseconds;
  for (Caller& caller : callers) {
    if (caller.error) return std::move(*caller.error);
    nanoseconds.insert(nanoseconds.end(), caller.nanoseconds.begin(), caller.nanoseconds.end());
  }
  HEADRACE_CLI_TRY(outputs, bring_outputs(model, std::move(callers[0].outputs)));
  if (!wanted.output.empty()) HEADRACE_CLI_CHECK(write_tensors(wanted.output, outputs.named, if_taken));
  ModelJson report = report_of(wanted, model, nanoseconds, seconds);
  report["outputs"] = ModelJson::array();
  for (const NamedView& output : outputs.named)
    report["outputs"].push_back(output_summary(output, wanted.whole));
  if (wanted.json)
    print_json(report);
  else
    fmt::print("{}", formats::printable(infer_text(report)));
  return {};
}

}  // namespace

void add_infer(const Command& app, Invocation& invocation) {
  auto wanted = std::make_shared<InferArguments>();
  const Command infer_command = app.add_subcommand("infer", "Run a model that AOTInductor compiled");
  add_model_arguments(infer_command, *wanted);
  infer_command.add_flag("-g,--generate", wanted->generate,
                         "Generate inputs that no file has: normal random numbers, or zeros and ones");
  infer_command.add_option("--seed", wanted->seed, "Seed of the generated inputs")
      .check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      .type_name("N")
      .show_default();
  infer_command
      .add_option("--dim", wanted->dimensions,
                  "Length of a dynamic dimension of generated inputs; repeatable")
      .type_name("NAME=LENGTH");
  infer_command
      .add_option("-o,--output", wanted->output, "File for the outputs: .npy, .npz, .safetensors or .json")
      .type_name("FILE");
  infer_command.add_flag("--force", wanted->force, "Replace an output that exists");
  infer_command.add_option("--runs", wanted->runs, "Runs of each thread that are measured")
      .check(whole_number(1, 1'000'000'000))
      .type_name("N")
      .show_default();
  infer_command
      .add_option("--warmup", wanted->warmup,
                  "Runs of each thread before those, not measured; default: 1, or 0 for a single run")
      .check(whole_number(0, 1'000'000'000))
      .type_name("N");
  infer_command
      .add_option("--threads", wanted->threads, "Threads that call the model at once; each has a runner")
      .check(whole_number(1, 1024))
      .type_name("N")
      .show_default();
  infer_command.add_flag("--print", wanted->whole, "Print all elements of the outputs; default: at most 16");
  infer_command.add_flag("--isolated", wanted->isolated,
                         "Run the model in a child process, and tell the signal that ends it if it crashes");
  infer_command.add_flag("--json", wanted->json, "Print JSON");
  infer_command.footer(
      "Prints a summary of each output, the times to load and run, and memory. If the output FILE exists, it "
      "is an error\n"
      "unless --force is given.\n"
      "--json prints one object: model, device, load_ms, unpack_ms, unpacked, runs, warmup, threads, "
      "latency_us (least,\n"
      "mean, p50, p90, p99, most), runs_per_second, memory, outputs (each: name, dtype, shape, data if short "
      "or with\n"
      "--print, least, most, mean, not_finite).\n"
      "Examples:\n"
      "  headrace infer model.pt2 --input x.npy --output y.npy\n"
      "  headrace infer model.pt2 --input ids=tokens.npy --input rest.safetensors\n"
      "  headrace infer model.pt2 --generate --dim batch=32 --warmup 100 --runs 1000\n"
      "  headrace infer model.pt2 --device cuda:1 --generate    a package for GPUs; inputs are copied to the "
      "GPU first\n"
      "  headrace infer model.pt2 --generate --runs 1000 --threads 4 --torch-threads 1");
  infer_command.callback([wanted, &invocation] {
    invocation.action = [wanted, &invocation]() -> Result<void> {
      const auto run = [&] { return infer(*wanted, invocation); };
      return wanted->isolated ? run_isolated(wanted->path, run) : run();
    };
  });
}

}  // namespace headrace::cli
