// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/model_doctor.hpp"

#include "cli/model/model_run.hpp"
#include "cli/model/model_text.hpp"
#include "formats/names.hpp"

#include <headrace/version.hpp>

#include <unistd.h>

namespace headrace::cli {
namespace {

ModelJson runtime_json(const ModelRuntimeInfo& runtime) {
  return {{"library", runtime.library},
          {"built_for", runtime.built_for},
          {"built_accelerator", runtime.built_accelerator},
          {"found", runtime.found},
          {"found_accelerator", runtime.found_accelerator},
          {"devices", runtime.device_count},
          {"cpu_capability", runtime.cpu_capability}};
}

/// Runs the model once on generated inputs.
Result<ModelJson> try_model(const DeviceExam& exam, const Invocation& invocation) {
  ModelRequest request;
  request.path = exam.model;
  request.options.device = exam.device;
  request.options.options = invocation.options;
  request.generate = true;
  HEADRACE_CLI_TRY(model, Model::open(request.path, request.options));
  HEADRACE_CLI_TRY(inputs, gather_inputs(model, request));
  HEADRACE_CLI_TRY(made, model.run(inputs.views()));
  HEADRACE_CLI_TRY(outputs, bring_outputs(model, std::move(made)));
  ModelJson json{
      {"path", exam.model}, {"passed", true}, {"load_ms", static_cast<double>(model.timing().load_ns) / 1e6}};
  json["run_ms"] = model.timing().run_ns.mean() / 1e6;
  json["outputs"] = ModelJson::array();
  for (const NamedView& output : outputs.named) json["outputs"].push_back(output_summary(output, false));
  return json;
}

/// Why torch cannot use a device; empty if it can. Without this every check would fail with the same error of
/// torch.
std::string absence(Device device, const ModelRuntimeInfo& runtime) {
  if (device.kind == Device::Kind::cpu || device.index < runtime.device_count) return {};
  if (runtime.found_accelerator == "cpu")
    return fmt::format(
        "torch {} is built for CPUs only: install a torch for this machine's GPUs, or use --device cpu",
        runtime.found);
  return fmt::format("torch {} finds {} here, counted from 0, and {} is not one of them", runtime.found,
                     runtime.device_count == 1 ? "1 GPU" : fmt::format("{} GPUs", runtime.device_count),
                     device_text(device));
}

void print_report(const ModelJson& report, const DeviceExam& exam) {
  if (exam.json || ::isatty(STDOUT_FILENO) == 0)
    print_json(report);
  else
    fmt::print("{}", formats::printable(exam_text(report)));
}

}  // namespace

Result<void> examine_device(const DeviceExam& exam, const Invocation& invocation) {
  ModelJson report{{"version", HEADRACE_VERSION}, {"works", false}};
  auto runtime = model_runtime(invocation.options);
  if (!runtime) {
    report["reason"] = runtime.error().message;
    print_report(report, exam);
    return std::move(runtime).error();
  }
  report["torch"] = runtime_json(*runtime);

  std::string device_name = exam.device;
  if (device_name.empty())
    if (const auto info = Model::inspect(exam.model)) device_name = device_text(info->device);
  HEADRACE_CLI_TRY(device, device_from_text(device_name.empty() ? "cpu" : device_name));
  report["device"] = device_text(device);
  if (const std::string why = absence(device, *runtime); !why.empty()) {
    report["reason"] = why;
    print_report(report, exam);
    return fail(Code::not_supported, "{}", why);
  }
  HEADRACE_CLI_TRY(checks, check_device(device, invocation.options));
  std::string failed;
  report["checks"] = ModelJson::array();
  for (const DeviceCheck& check : checks) {
    report["checks"].push_back({{"name", check.name},
                                {"passed", check.passed},
                                {"detail", check.detail},
                                {"ms", check.milliseconds}});
    if (!check.passed) failed.append(failed.empty() ? "" : ", ").append(check.name);
  }
  if (!exam.model.empty()) {
    auto model = try_model(exam, invocation);
    if (model) {
      report["model"] = std::move(*model);
    } else {
      report["model"] = {{"path", exam.model}, {"passed", false}, {"reason", model.error().message}};
      failed.append(failed.empty() ? "" : ", ").append("the model: ").append(model.error().message);
    }
  }
  report["works"] = failed.empty();
  print_report(report, exam);
  if (failed.empty()) return {};
  return fail(Code::backend_failed, "these checks failed on {}: {}", device_text(device), failed);
}

}  // namespace headrace::cli
