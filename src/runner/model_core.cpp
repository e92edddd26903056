// SPDX-License-Identifier: Apache-2.0
#include "runner/model_core.hpp"

#include "runner/debug_print.hpp"
#include "runner/machine.hpp"
#include "runner/package_cache.hpp"
#include "runner/package_info.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>

namespace headrace {
namespace {

constexpr std::size_t most_runners = 1024;
constexpr std::int32_t most_threads =
    1024;  // a run starts this many; a million would use up the machine's processes

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

/// torch's loader parses its files into a variable that all loaders of the process share: so only one loads
/// at a time.
std::mutex& loading() {
  static std::mutex mutex;
  return mutex;
}

/// The device to load for: kind of the package, index of the wish.
Result<Device> choose_device(const ModelInfo& info, const std::string& wish) {
  if (wish.empty()) return info.device;
  HEADRACE_TRY(device, device_from_text(wish));
  if (device.kind == info.device.kind) return device;
  const char* const other = info.device.kind == Device::Kind::cpu ? "cpu" : "cuda";
  return make_error(Code::not_supported,
                    "{} was compiled for {}, and {} was requested: export it with --device {}", info.path,
                    other, wish, device.kind == Device::Kind::cpu ? "cpu" : "cuda");
}

/// GPU code runs on the architecture that it was compiled for, and on later ones of the same generation.
bool runs_on(const std::string& code, const std::string& gpu) {
  if (code.empty() || gpu.empty() || code == gpu) return true;
  const auto is_number = [](const std::string& text) {
    return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!is_number(code) || !is_number(gpu) || code.size() < 2 || gpu.size() != code.size()) return false;
  return code.substr(0, code.size() - 1) == gpu.substr(0, gpu.size() - 1) && code.back() <= gpu.back();
}

Result<void> check_gpu(const ModelInfo& info, const headrace_model_runtime_v1& table,
                       const headrace_runtime_info_v1& runtime) {
  if (info.device.kind == Device::Kind::cpu) return {};
  if (std::string_view(runtime.found_accelerator) == "cpu")
    return make_error(
        Code::not_supported,
        "{} was compiled for a GPU, and torch {} is for CPUs only: install a torch with CUDA or ROCm",
        info.path, runtime.found);
  if (info.device.index >= runtime.device_count)
    return make_error(Code::not_supported, "{}: there is no {}: torch sees {} GPU{}", info.path,
                      device_text(info.device), runtime.device_count, runtime.device_count == 1 ? "" : "s");
  headrace_device_info_v1 gpu{};
  gpu.struct_size = sizeof gpu;
  RuntimeText text;
  if (const std::int32_t code = table.device_info(info.device.index, &gpu, text.get()); code != 0)
    return text.error(code);
  if (runs_on(info.compute_capability, gpu.compute_capability)) return {};
  return make_error(Code::not_supported,
                    "{} was compiled for GPUs of compute capability {}, and {} ({}) has {}: export it on a "
                    "GPU like this one",
                    info.path, info.compute_capability, device_text(info.device), gpu.name,
                    gpu.compute_capability);
}

/// 2.13 for "2.13.0+cpu", as numbers that can be compared.
std::pair<int, int> release_of(const std::string& version) {
  std::pair<int, int> release{0, 0};
  char dot = 0;
  std::istringstream(version) >> release.first >> dot >> release.second;
  return release;
}

/// Compiled code calls functions of torch that later versions keep; earlier versions may lack them.
Result<void> check_torch(ModelInfo& info, const std::string& found) {
  if (info.torch_version.empty() || same_torch_release(info.torch_version, found)) return {};
  if (release_of(info.torch_version) > release_of(found))
    return make_error(Code::not_supported,
                      "{} was compiled by torch {}, and torch {} is installed, which is older: install torch "
                      "{}, or export it with this one",
                      info.path, info.torch_version, found,
                      info.torch_version.substr(0, info.torch_version.find('+')));
  info.warnings.push_back(fmt::format(
      "it was compiled by torch {}, and torch {} is installed: compare results, or export it again",
      info.torch_version, found));
  return {};
}

void* runtime_stream(std::optional<void*> stream) { return stream ? *stream : HEADRACE_MODEL_CURRENT_STREAM; }

headrace_runtime_info_v1 ask_runtime(const headrace_model_runtime_v1& table) {
  headrace_runtime_info_v1 runtime{};
  runtime.struct_size = sizeof runtime;
  table.info(&runtime);
  return runtime;
}

/// Resident memory of this process.
std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t whole = 0, resident = 0;
  statm >> whole >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

ModelCore::ModelCore(ModelInfo info, const ModelRuntime& runtime, bool debug, Logger& logger)
    : info_(std::move(info)),
      table_(runtime.table),
      check_(info_.inputs, info_.device, input_count_known(info_)),
      debug_(debug),
      log_(logger, "model") {}

Result<std::unique_ptr<ModelCore>> ModelCore::open(const std::string& path, const ModelOptions& options,
                                                   const RuntimeSource& source, Logger& logger) {
  const std::uint64_t begin = now_ns();
  if (options.runners == 0 || options.runners > most_runners)
    return make_error(Code::invalid_argument, "{} runners: 1 to {} are allowed", options.runners,
                      most_runners);
  if (options.threads < 0 || options.threads > most_threads)
    return make_error(Code::invalid_argument, "{} threads: 1 to {} are allowed, or 0 for torch's own setting",
                      options.threads, most_threads);
  HEADRACE_TRY(settings, model_settings(options.options));
  HEADRACE_TRY(package, Package::open(path));
  HEADRACE_TRY(info, read_model_info(package, options.model_name, this_machine()));
  if (!info.refusal.empty())
    return make_error(Code::not_supported, "{} cannot run here: {}", path, info.refusal);
  HEADRACE_TRY(device, choose_device(info, options.device));
  info.device = device;

  HEADRACE_TRY(runtime, source(settings));
  const headrace_runtime_info_v1 torch = ask_runtime(*runtime.table);
  HEADRACE_TRY_VOID(check_torch(info, torch.found));
  HEADRACE_TRY_VOID(check_gpu(info, *runtime.table, torch));

  const std::uint64_t unpack_begin = now_ns();
  HEADRACE_TRY(unpacked, PackageCache(settings.cache_folder).unpacked(package));
  std::unique_ptr<ModelCore> core(new ModelCore(std::move(info), runtime, settings.debug, logger));
  core->threads_ = options.threads;
  core->load_timing_.unpack_ns = now_ns() - unpack_begin;
  core->load_timing_.unpacked = unpacked.fresh;
  if (options.threads > 0) runtime.table->set_threads(options.threads);
  HEADRACE_TRY_VOID(
      core->load(unpacked.folder.string(), package.is_folder() ? std::string() : path, options.runners));
  core->load_timing_.load_ns = now_ns() - begin;
  for (const std::string& warning : core->info_.warnings) core->log_.warn("{}: {}", path, warning);
  return core;
}

Result<void> ModelCore::load(const std::string& folder, const std::string& archive, std::size_t runners) {
  headrace_model_open_v1 args{};
  args.struct_size = sizeof args;
  args.path = folder.c_str();
  args.archive = archive.empty() ? nullptr : archive.c_str();
  args.model_name = info_.model_name.c_str();
  args.device_kind = static_cast<std::int32_t>(info_.device.kind);
  args.device_index = info_.device.index;
  std::vector<std::unique_ptr<Runner>> loaded;
  RuntimeText text;
  const std::scoped_lock lock(loading());
  for (std::size_t i = 0; i < runners; ++i) {
    void* model = nullptr;
    if (const std::int32_t code = table_->open(&args, &model, text.get()); code != 0)
      return std::move(text.error(code)).within(fmt::format("load {}", info_.path));
    loaded.push_back(std::make_unique<Runner>(*table_, model));
  }
  RuntimeText in(1 << 20), out(1 << 20);
  if (table_->call_spec(loaded.front()->model(), in.get(), out.get(), text.get()) == 0) {
    info_.call_spec_in = in.view();
    info_.call_spec_out = out.view();
  }
  pool_ = std::make_unique<RunnerPool>(std::move(loaded));
  return {};
}

Result<void> ModelCore::run(std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                            const RunOptions& options) {
  // A forked child does not have torch's threads and would wait for them forever; a run with one thread needs
  // none.
  if (threads_ != 1 && fork_guard_.forked())
    return make_error(Code::invalid_argument,
                      "{} was opened before this process was forked: open it in this process, or with one "
                      "thread in the parent",
                      info_.path);
  if (options.stream && info_.device.kind == Device::Kind::cpu)
    return make_error(Code::invalid_argument,
                      "{} runs on the CPU, which has no streams, and a stream was given: omit it, or export "
                      "the model with --device cuda",
                      info_.path);
  const RunnerPool::Loan runner = pool_->take();
  if (debug_) return run_debug(*runner, inputs, outputs, options);
  return bind_and_run(*runner, inputs, outputs, options);
}

Result<void> ModelCore::bind_and_run(Runner& runner, std::span<const TensorView> inputs,
                                     std::vector<Tensor>& outputs, const RunOptions& options) {
  const std::uint64_t begin = now_ns();
  if (!runner.has(inputs)) {
    HEADRACE_TRY_VOID(check_.check(inputs));
    if (auto bound = runner.bind(inputs); !bound) return std::move(bound).error().within(info_.path);
  }
  HEADRACE_TRY_VOID(check_.check_values(inputs));
  if (auto ran = runner.run(runtime_stream(options.stream), outputs); !ran)
    return std::move(ran).error().within(fmt::format("run {}", info_.path));
  if (options.synchronize) HEADRACE_TRY_VOID(wait(options.stream));
  run_ns_.record(now_ns() - begin);
  return {};
}

Result<void> ModelCore::wait(std::optional<void*> stream) const {
  if (info_.device.kind == Device::Kind::cpu) return {};
  RuntimeText text;
  const std::int32_t code = table_->synchronize(static_cast<std::int32_t>(info_.device.kind),
                                                info_.device.index, runtime_stream(stream), text.get());
  if (code != 0) return std::move(text.error(code)).within(fmt::format("run {}", info_.path));
  return {};
}

Result<void> ModelCore::run_debug(Runner& runner, std::span<const TensorView> inputs,
                                  std::vector<Tensor>& outputs, const RunOptions& options) {
  const std::uint64_t begin = now_ns();
  HEADRACE_TRY_VOID(check_.check(inputs));
  const std::uint64_t checked = now_ns();
  say("input", info_.inputs, inputs);
  const std::uint64_t bind_begin = now_ns();
  if (auto bound = runner.bind(inputs); !bound) return std::move(bound).error().within(info_.path);
  const std::uint64_t bound = now_ns();
  HEADRACE_TRY_VOID(bind_and_run(runner, inputs, outputs, options));
  const std::uint64_t ran = now_ns();
  std::vector<TensorView> views;
  for (const Tensor& output : outputs) views.push_back(output.view());
  say("output", info_.outputs, views);
  fmt::print(stderr, "headrace: {}: check {:.1f} us, bind {:.1f} us, run {:.1f} us\n", info_.path,
             static_cast<double>(checked - begin) / 1e3, static_cast<double>(bound - bind_begin) / 1e3,
             static_cast<double>(ran - bound) / 1e3);
  return {};
}

void ModelCore::say(const char* what, std::span<const TensorSpec> specs, std::span<const TensorView> views) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    const std::string name = i < specs.size() ? specs[i].name : "";
    TensorView view = views[i];
    Result<Tensor> host = Error{};
    if (view.device.kind != Device::Kind::cpu) {
      host = copy_to(view, Device{});
      if (!host) {
        fmt::print(stderr, "headrace: {}: {} {} ({}): {}\n", info_.path, what, i, name, host.error().message);
        continue;
      }
    }
    const TensorStatistics statistics = statistics_of(host ? host->view() : view);
    fmt::print(stderr, "headrace: {}: {} {} ({}): {}\n", info_.path, what, i, name,
               describe_tensor(view, statistics));
  }
}

Result<std::vector<ConstantInfo>> ModelCore::constants() {
  const RunnerPool::Loan runner = pool_->take();
  std::vector<ConstantInfo> found;
  RuntimeText text;
  const std::int32_t code = table_->constants(
      runner->model(),
      [](void* context, const char* name, const headrace_tensor_v1* tensor) {
        const TensorView view = from_runtime(*tensor);
        static_cast<std::vector<ConstantInfo>*>(context)->push_back({name, view.dtype, view.shape});
      },
      &found, text.get());
  if (code != 0) return std::move(text.error(code)).within(fmt::format("constants of {}", info_.path));
  std::ranges::sort(found, {}, &ConstantInfo::name);
  return found;
}

Result<void> ModelCore::replace_constants(const std::map<std::string, TensorView>& values) {
  HEADRACE_TRY(known, constants());
  std::vector<const char*> names;
  std::vector<headrace_tensor_v1> tensors;
  for (const auto& [name, view] : values) {
    const auto constant = std::ranges::find(known, name, &ConstantInfo::name);
    if (constant == known.end()) {
      std::string all;
      for (const ConstantInfo& one : known) all.append(all.empty() ? "" : ", ").append(one.name);
      return make_error(Code::invalid_argument, "{} has no constant \"{}\"; it has {}", info_.path, name,
                        all.empty() ? "none" : all);
    }
    if (view.dtype != constant->dtype || view.shape != constant->shape)
      return make_error(Code::invalid_argument,
                        "constant {} is {} {}, and {} was given: nothing was replaced", name,
                        dtype_name(constant->dtype), shape_text(constant->shape), view_text(view));
    if (view.data == nullptr && view.shape.count() != 0)
      return make_error(Code::invalid_argument, "constant {} was given without memory: nothing was replaced",
                        name);
    if (std::ranges::any_of(view.strides, [](std::int64_t stride) { return stride < 0; }))
      return make_error(Code::invalid_argument,
                        "constant {} has negative strides: pass a copy; nothing was replaced", name);
    if (view.device.kind != Device::Kind::cpu && view.device != info_.device)
      return make_error(Code::invalid_argument,
                        "constant {} is on {}, and the model on {}: nothing was replaced", name,
                        device_text(view.device), device_text(info_.device));
    names.push_back(name.c_str());
    tensors.push_back(to_runtime(view));
  }
  return pool_->with_all([&](const std::vector<std::unique_ptr<Runner>>& runners) -> Result<void> {
    RuntimeText text;
    for (const auto& runner : runners)
      if (const std::int32_t code = table_->replace_constants(runner->model(), names.size(), names.data(),
                                                              tensors.data(), text.get());
          code != 0)
        return std::move(text.error(code)).within(fmt::format("replace constants of {}", info_.path));
    return {};
  });
}

Result<Tensor> ModelCore::copy_to(const TensorView& tensor, Device device) {
  headrace_tensor_v1 made = to_runtime({nullptr, tensor.dtype, tensor.shape, {}, device});
  const headrace_tensor_v1 from = to_runtime(tensor);
  RuntimeText text;
  if (const std::int32_t code = table_->allocate(&made, text.get()); code != 0)
    return std::move(text.error(code))
        .within(fmt::format("allocate {} on {}", view_text(tensor), device_text(device)));
  Tensor result(from_runtime(made), made.handle, table_->release);
  if (const std::int32_t code = table_->copy(&made, &from, text.get()); code != 0)
    return std::move(text.error(code))
        .within(fmt::format("copy {} to {}", view_text(tensor), device_text(device)));
  return result;
}

ModelTiming ModelCore::timing() const {
  ModelTiming timing = load_timing_;
  timing.run_ns = run_ns_.snapshot();
  return timing;
}

ModelMemory ModelCore::memory() {
  ModelMemory memory;
  memory.package_bytes = info_.package_bytes;
  if (const auto known = constants())
    for (const ConstantInfo& constant : *known)
      memory.constant_bytes +=
          static_cast<std::uint64_t>(constant.shape.count()) * element_bytes(constant.dtype);
  memory.process_bytes = resident_bytes();
  if (info_.device.kind == Device::Kind::cpu) return memory;
  headrace_device_info_v1 gpu{};
  gpu.struct_size = sizeof gpu;
  RuntimeText text;
  if (table_->device_info(info_.device.index, &gpu, text.get()) == 0) {
    memory.device_bytes = gpu.held_bytes;
    memory.device_peak_bytes = gpu.held_peak_bytes;
    memory.device_used_bytes = gpu.used_bytes;
  }
  return memory;
}

}  // namespace headrace
