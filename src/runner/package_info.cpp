// SPDX-License-Identifier: Apache-2.0
#include "runner/package_info.hpp"

#include "runner/exported_program.hpp"
#include "runner/generated_code.hpp"
#include "runner/io_spec.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr const char* own_key = "headrace";  // in the metadata, which contains the description too

/// ELF's machine numbers, for the two machines that torch is built for on Linux.
std::string elf_machine(std::string_view header) {
  constexpr std::size_t machine_at = 18;
  if (header.size() < machine_at + 2 || !header.starts_with("\x7f"
                                                            "ELF"))
    return {};
  std::uint16_t number = 0;
  std::memcpy(&number, header.data() + machine_at, sizeof number);
  if (number == 62) return "x86_64";
  if (number == 183) return "aarch64";
  return fmt::format("ELF machine {}", number);
}

/// Reads the keys that AOTInductor writes; the rest is the author's.
Result<void> take_metadata(std::string_view json, ModelInfo& info) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object())
    return make_error(Code::corrupt, "{}: its metadata is not a JSON object", info.path);
  std::string device;
  for (const auto& [key, value] : parsed.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "AOTI_DEVICE_KEY")
      device = text;
    else if (key == "AOTI_PLATFORM")
      info.platform = text;
    else if (key == "AOTI_MACHINE")
      info.machine = text;
    else if (key == "AOTI_CPU_ISA")
      info.cpu_isa = text;
    else if (key == "AOTI_COMPUTE_CAPABILITY")
      info.compute_capability = text;
    else
      info.metadata[key] = text;
  }
  if (device.empty()) return {};
  auto known = device_from_text(device);
  if (!known)
    info.refusal = fmt::format("it was compiled for the device \"{}\", which is unknown here", device);
  else
    info.device = *known;
  return {};
}

/// The best description in the package.
Result<IoSpec> find_io_spec(const Package& package, ModelInfo& info) {
  HEADRACE_TRY(own, package.text("extra/headrace.json"));
  if (!own)
    if (const auto noted = info.metadata.find(own_key); noted != info.metadata.end()) own = noted->second;
  info.metadata.erase(own_key);
  if (own && (package.models().size() == 1 || info.model_name == "model")) {
    auto spec = read_io_spec(*own);
    if (!spec) return std::move(spec).error().within(info.path);
    return spec;
  }
  HEADRACE_TRY(program, package.text("models/" + info.model_name + ".json"));
  if (program)
    if (auto spec = read_exported_program(*program)) return std::move(*spec);
  std::optional<std::string> code;
  if (const auto name = package.member_of(info.model_name, "wrapper.cpp")) {
    HEADRACE_TRY(text, package.text(*name));
    code = std::move(text);
  }
  if (code) {
    if (auto spec = read_generated_code(*code)) return std::move(*spec);
    if (const auto counts = read_counts(*code)) {
      IoSpec spec;
      spec.inputs.resize(counts->inputs);
      spec.outputs.resize(counts->outputs);
      for (std::size_t i = 0; i < counts->inputs; ++i) spec.inputs[i].name = fmt::format("input{}", i);
      for (std::size_t i = 0; i < counts->outputs; ++i) spec.outputs[i].name = fmt::format("output{}", i);
      return spec;
    }
  }
  return IoSpec{};
}

void warn(ModelInfo& info) {
  if (info.spec_source == SpecSource::nothing)
    info.warnings.push_back(
        "its inputs are not checked: the package does not describe them, and wrong inputs give wrong numbers "
        "or a crash. Export "
        "it with `python -m headrace.export`");
  // Packages that torch itself exported never have a version: `inspect` shows that it is unknown, and a
  // warning at each load would help nobody.
  const bool of_torch =
      info.spec_source == SpecSource::exported_program || info.spec_source == SpecSource::generated_code;
  if (info.torch_version.empty() && !of_torch)
    info.warnings.push_back(
        "the package does not say which torch compiled it, so the version is not checked");
}

void judge(const Package& package, const Machine& machine, ModelInfo& info) {
  if (!info.refusal.empty()) return;
  if (!info.platform.empty() && info.platform != machine.platform) {
    info.refusal = fmt::format("it was compiled for {}, and this is {}: export it there", info.platform,
                               machine.platform);
    return;
  }
  std::string architecture = info.machine;
  if (const auto code = package.member_of(info.model_name, ".so"))
    if (auto header = package.beginning(*code, 64); header && !elf_machine(*header).empty())
      architecture = elf_machine(*header);
  if (!architecture.empty() && architecture != machine.architecture) {
    info.refusal =
        fmt::format("it was compiled for {}, and this machine is {}: export it on a machine like this",
                    architecture, machine.architecture);
    return;
  }
  const IsaCheck isa = check_isa(info.cpu_isa, machine);
  if (!isa.missing.empty())
    info.refusal = fmt::format(
        "it was compiled for {}, and this CPU has no {}: export it on a machine like this, or for fewer "
        "features (ATEN_CPU_CAPABILITY=avx2 at export)",
        info.cpu_isa, fmt::join(isa.missing, ", "));
  if (!isa.unknown.empty())
    info.warnings.push_back(
        fmt::format("the CPU feature {} is unknown here and not checked", fmt::join(isa.unknown, ", ")));
}

}  // namespace

std::string_view spec_source_name(SpecSource source) noexcept {
  switch (source) {
    case SpecSource::exported:
      return "exported";
    case SpecSource::exported_program:
      return "exported program";
    case SpecSource::generated_code:
      return "generated code";
    case SpecSource::nothing:
      break;
  }
  return "nothing";
}

bool input_count_known(const ModelInfo& info) {
  return info.spec_source != SpecSource::nothing || !info.inputs.empty() || !info.outputs.empty();
}

Result<ModelInfo> read_model_info(const Package& package, const std::string& model_name,
                                  const Machine& machine) {
  if (std::ranges::find(package.models(), model_name) == package.models().end())
    return make_error(Code::invalid_argument, "{} has no model \"{}\": it has {}", package.path(), model_name,
                      fmt::join(package.models(), ", "));
  ModelInfo info;
  info.path = package.path();
  info.model_name = model_name;
  info.model_names = package.models();
  info.package_bytes = package.bytes();
  if (const auto name = package.member_of(model_name, "wrapper_metadata.json")) {
    HEADRACE_TRY(text, package.text(*name));
    if (text) HEADRACE_TRY_VOID(take_metadata(*text, info));
  }
  HEADRACE_TRY(spec, find_io_spec(package, info));
  info.spec_source = spec.source;
  info.inputs = std::move(spec.inputs);
  info.outputs = std::move(spec.outputs);
  info.torch_version = std::move(spec.torch_version);
  info.headrace_version = std::move(spec.headrace_version);
  judge(package, machine, info);
  warn(info);
  return info;
}

}  // namespace headrace
