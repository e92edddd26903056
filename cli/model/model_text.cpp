// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_text.hpp"

#include "cli/common/table.hpp"
#include "cli/common/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace headrace::cli {
namespace {

using Align = Table::Align;

std::string text_of(const ModelJson& value, const char* name) { return value.at(name).get<std::string>(); }
double number_of(const ModelJson& value, const char* name) { return value.at(name).get<double>(); }

/// "35.1 us", "82.2 ms", "1.50 s": three digits.
std::string duration_text(double microseconds) {
  const char* unit = "us";
  double value = microseconds;
  for (const char* larger : {"ms", "s"}) {
    if (value < 999.5) break;
    value /= 1e3;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

std::string number_text(double value) { return fmt::format("{:.4g}", value); }

// --- inspect

std::string dimension_text(const DimensionSpec& dimension) {
  if (!dimension.expression.empty()) return dimension.expression;
  if (dimension.fixed()) return fmt::format("{}", dimension.least);
  const std::string most = dimension.most ? fmt::format("{}", *dimension.most) : "";
  return fmt::format("{}{}{}..{}", dimension.name, dimension.name.empty() ? "" : " ", dimension.least, most);
}

std::string shape_cell(const TensorSpec& spec) {
  if (!spec.shape_known) return "not known";
  std::vector<std::string> lengths;
  for (const DimensionSpec& dimension : spec.shape) lengths.push_back(dimension_text(dimension));
  return fmt::format("[{}]", fmt::join(lengths, ", "));
}

std::string remarks(const TensorSpec& spec) {
  std::vector<std::string> all;
  if (spec.optional) all.emplace_back("may be left out");
  if (spec.mutated) all.emplace_back("written to");
  if (spec.values) all.push_back(fmt::format("indices {}..{}", spec.values->least, spec.values->most));
  if (!spec.strides.empty()) all.push_back(fmt::format("strides [{}]", fmt::join(spec.strides, ", ")));
  return fmt::format("{}", fmt::join(all, ", "));
}

void add_specs(Table& table, const char* what, const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs)
    table.add({what, spec.name, spec.dtype ? std::string(dtype_name(*spec.dtype)) : "not known",
               shape_cell(spec), remarks(spec)});
}

std::string made_by(const ModelInfo& info) {
  std::string text;
  if (!info.torch_version.empty()) text += fmt::format(", by torch {}", info.torch_version);
  if (!info.headrace_version.empty()) text += fmt::format(", exported by Headrace {}", info.headrace_version);
  return text;
}

// --- infer

/// The elements of an output; empty if the report leaves them out.
std::string elements_cell(const ModelJson& output) {
  const auto data = output.find("data");
  if (data == output.end()) return "";
  std::vector<std::string> elements;
  for (const ModelJson& element : *data)
    elements.push_back(element.is_number_float() ? number_text(element.get<double>()) : element.dump());
  return fmt::format("{}", fmt::join(elements, " "));
}

std::string shape_cell(const ModelJson& output) {
  return fmt::format("[{}]", fmt::join(output.at("shape").get<std::vector<std::int64_t>>(), ", "));
}

std::string outputs_table(const ModelJson& outputs) {
  Table table({{"output"},
               {"dtype"},
               {"shape"},
               {"least", Align::right},
               {"mean", Align::right},
               {"most", Align::right},
               {"not finite", Align::right},
               {"elements"}});
  for (const ModelJson& output : outputs)
    table.add({text_of(output, "name"), text_of(output, "dtype"), shape_cell(output),
               number_text(number_of(output, "least")), number_text(number_of(output, "mean")),
               number_text(number_of(output, "most")), output.at("not_finite").dump(),
               elements_cell(output)});
  return table.text();
}

void add_runs(Table& table, const ModelJson& report) {
  const ModelJson& latency = report.at("latency_us");
  const auto at = [&](const char* name) { return duration_text(number_of(latency, name)); };
  if (report.at("runs") == 1) return table.add({"run", at("mean"), ""});
  std::string how = fmt::format("of {} runs", report.at("runs").dump());
  if (report.at("threads") != 1) how += fmt::format(", {} at once", report.at("threads").dump());
  if (report.at("warmup") != 0) how += fmt::format(", after {} warm-up runs", report.at("warmup").dump());
  table.add({"run, mean", at("mean"), how});
  table.add({"run, median", at("p50"), fmt::format("from {} to {}", at("least"), at("most"))});
  table.add({"run, 99 %", at("p99"), fmt::format("at most; 90 %: {}", at("p90"))});
}

std::string times_table(const ModelJson& report) {
  Table table({{text_of(report, "device")}, {"", Align::right}, {""}});
  const bool unpacked = report.at("unpacked").get<bool>();
  table.add({"load", duration_text(number_of(report, "load_ms") * 1e3),
             unpacked ? fmt::format("unpacking took {} of it; the next load need not unpack",
                                    duration_text(number_of(report, "unpack_ms") * 1e3))
                      : ""});
  add_runs(table, report);
  const ModelJson& memory = report.at("memory");
  const auto amount = [&](const char* name) { return amount_text(memory.at(name).get<std::uint64_t>()); };
  table.add({"memory", amount("constant_bytes"),
             fmt::format("of constants; the whole process has {}", amount("process_bytes"))});
  if (memory.at("device_used_bytes") != 0)
    table.add({"GPU memory", amount("device_bytes"),
               fmt::format("held by torch, at most {}; all processes use {} of the GPU",
                           amount("device_peak_bytes"), amount("device_used_bytes"))});
  return table.text();
}

// --- verify

std::string verdict(const ModelJson& report, std::optional<double> largest) {
  const std::string allowed = fmt::format("{:g} + {:g} of the expected value", number_of(report, "absolute"),
                                          number_of(report, "relative"));
  const char* const word = report.at("passed").get<bool>() ? "as expected" : "not as expected";
  if (!largest) return fmt::format("largest difference: none could be compared, {}\n", word);
  return fmt::format("largest difference: {:.6g}, {} (allowed: {})\n", *largest, word, allowed);
}

}  // namespace

std::string inspect_text(const ModelInfo& info, const std::vector<ConstantInfo>& constants) {
  std::string text = fmt::format("{}: model \"{}\" for {}, {}{}\n\n", info.path, info.model_name,
                                 info.device.kind == Device::Kind::cpu ? "cpu" : "cuda",
                                 amount_text(info.package_bytes), made_by(info));
  if (info.model_names.size() > 1)
    text.insert(text.size() - 1, fmt::format("in the package: {}\n", fmt::join(info.model_names, ", ")));
  Table table({{"what"}, {"name"}, {"dtype"}, {"shape"}, {""}});
  add_specs(table, "input", info.inputs);
  add_specs(table, "output", info.outputs);
  for (const ConstantInfo& constant : constants)
    table.add(
        {"constant", constant.name, std::string(dtype_name(constant.dtype)), shape_text(constant.shape), ""});
  if (!table.empty()) text += table.text() + "\n";
  for (const std::string& warning : info.warnings) text += wrap("warning: " + warning, 2) + "\n";
  return text +
         wrap(info.refusal.empty() ? "It runs on this machine."
                                   : "It does not run on this machine: " + info.refusal) +
         "\n";
}

std::string infer_text(const ModelJson& report) {
  return outputs_table(report.at("outputs")) + "\n" + times_table(report);
}

std::string verify_text(const ModelJson& report) {
  Table table({{"output"},
               {"elements", Align::right},
               {"different", Align::right},
               {"largest difference", Align::right},
               {""}});
  std::optional<double> largest;
  for (const ModelJson& output : report.at("outputs")) {
    const auto found = output.find("largest_difference");
    const std::string reason = output.value("reason", std::string());
    if (found == output.end()) {
      table.add({text_of(output, "name"), "", "", "", reason});
      continue;
    }
    largest = std::max(largest.value_or(0), found->get<double>());
    table.add({text_of(output, "name"), output.at("elements").dump(), output.at("different").dump(),
               fmt::format("{:.6g}", found->get<double>()), reason});
  }
  return table.text() + "\n" + verdict(report, largest);
}

std::string exam_text(const ModelJson& report) {
  Table table({{"what"}, {"state"}, {"found"}});
  if (const auto torch = report.find("torch"); torch != report.end())
    table.add({"torch", "ok",
               fmt::format("{}, GPUs: {}, {}", text_of(*torch, "found"), torch->at("devices").dump(),
                           text_of(*torch, "cpu_capability"))});
  const auto add = [&](const std::string& what, const ModelJson& tried, const std::string& found) {
    table.add({what, tried.at("passed").get<bool>() ? "ok" : "bad", found});
  };
  for (const ModelJson& check : report.value("checks", ModelJson::array()))
    add(text_of(check, "name"), check, text_of(check, "detail"));
  if (const auto model = report.find("model"); model != report.end())
    add("the model", *model,
        model->contains("reason")
            ? text_of(*model, "reason")
            : fmt::format("loads in {}, runs in {}", duration_text(number_of(*model, "load_ms") * 1e3),
                          duration_text(number_of(*model, "run_ms") * 1e3)));
  std::string text = fmt::format("headrace {}\n\n", text_of(report, "version"));
  if (!table.empty()) text += table.text();
  if (const auto torch = report.find("torch");
      torch != report.end() && text_of(*torch, "found_accelerator") == "rocm")
    text += "\nThis torch is for ROCm: Headrace is built for it, but has not been run on AMD hardware.\n";
  if (report.at("works").get<bool>())
    text += fmt::format("\nAll checks passed on {}.\n", text_of(report, "device"));
  return text;
}

}  // namespace headrace::cli
