// SPDX-License-Identifier: Apache-2.0
// A model runtime for tests without torch: output i is a copy of input i, plus one if it is float32. Tests
// set the errors beforehand.
#pragma once

#include "vendor/torch/model_runtime.hpp"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace headrace {

/// What the fake was asked, and what it returns. One in a process at a time: a C table has no context for a
/// second.
struct FakeModelRuntime {
  std::atomic<int> opened = 0, closed = 0, bound = 0, runs = 0, released = 0, threads = 0;
  std::atomic<int> inside = 0, most_inside = 0;  ///< runs at the same time
  std::uint64_t outputs = 1;
  std::string open_error, run_error;
  /// Called inside every run: for tests that hold a run.
  void (*during_run)(FakeModelRuntime&) = nullptr;
  std::mutex mutex;
  std::map<std::string, std::vector<float>> constants{{"weight", {1, 2, 3}}};
  std::string path;                    ///< of the last open
  int gpus = 0;                        ///< of compute capability 90, with host memory
  std::vector<void*> streams, waited;  ///< of each run; of each synchronize. For tests with one thread

  FakeModelRuntime() { current() = this; }
  ~FakeModelRuntime() { current() = nullptr; }
  FakeModelRuntime(const FakeModelRuntime&) = delete;
  FakeModelRuntime& operator=(const FakeModelRuntime&) = delete;

  [[nodiscard]] static FakeModelRuntime*& current() {
    static FakeModelRuntime* fake = nullptr;
    return fake;
  }
  [[nodiscard]] static ModelRuntime runtime() { return {&table(), "fake"}; }

 private:
  struct Loaded {
    std::vector<headrace_tensor_v1> inputs;
  };

  static std::int32_t say(headrace_model_text_v1* error, const std::string& text) {
    error->length = std::min(text.size(), error->capacity);
    std::memcpy(error->data, text.data(), error->length);
    return static_cast<std::int32_t>(Code::backend_failed);
  }

  static std::size_t bytes_of(const headrace_tensor_v1& tensor) {
    static constexpr std::size_t widths[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 1, 1};
    std::size_t count = widths[tensor.dtype];
    for (std::uint32_t i = 0; i < tensor.rank; ++i) count *= static_cast<std::size_t>(tensor.shape[i]);
    return count;
  }

  static void fill(headrace_tensor_v1& tensor) {
    std::int64_t stride = 1;
    for (std::uint32_t i = tensor.rank; i-- > 0;) {
      tensor.strides[i] = stride;
      stride *= tensor.shape[i];
    }
    tensor.handle = ::operator new(bytes_of(tensor) + 1);
    tensor.data = tensor.handle;
  }

  static std::int32_t run(void* model, void* stream, headrace_tensor_v1* outputs, std::uint64_t* count,
                          headrace_model_text_v1* error) {
    FakeModelRuntime& fake = *current();
    const int inside = ++fake.inside;
    for (int seen = fake.most_inside;
         seen < inside && !fake.most_inside.compare_exchange_weak(seen, inside);) {
    }
    ++fake.runs;
    if (fake.during_run != nullptr) fake.during_run(fake);
    --fake.inside;
    if (!fake.run_error.empty()) return say(error, fake.run_error);
    if (fake.gpus > 0) fake.streams.push_back(stream);
    const std::uint64_t room = *count;
    *count = fake.outputs;
    if (room < fake.outputs) return static_cast<std::int32_t>(Code::exhausted);
    const std::vector<headrace_tensor_v1>& inputs = static_cast<Loaded*>(model)->inputs;
    for (std::uint64_t i = 0; i < fake.outputs; ++i) {
      outputs[i] = inputs.at(i % inputs.size());
      fill(outputs[i]);
      std::memcpy(outputs[i].handle, inputs[i % inputs.size()].data, bytes_of(outputs[i]));
      if (outputs[i].dtype == HEADRACE_FLOAT32)
        for (std::size_t k = 0; k < bytes_of(outputs[i]) / sizeof(float); ++k)
          static_cast<float*>(outputs[i].handle)[k] += 1;
    }
    return 0;
  }

  static const headrace_model_runtime_v1& table() {
    static const headrace_model_runtime_v1 made = make_table();
    return made;
  }

  static headrace_model_runtime_v1 make_table() {
    headrace_model_runtime_v1 t{};
    t.struct_size = sizeof t;
    t.abi_major = HEADRACE_MODEL_RUNTIME_ABI_MAJOR;
    t.abi_minor = HEADRACE_MODEL_RUNTIME_ABI_MINOR;
    t.info = [](headrace_runtime_info_v1* info) {
      info->built_for = info->found = "2.13.0+cpu";
      info->device_count = current()->gpus;
      info->built_accelerator = info->found_accelerator = info->device_count > 0 ? "cuda" : "cpu";
      info->cpu_capability = "AVX2";
    };
    t.device_info = [](std::int32_t index, headrace_device_info_v1* info,
                       headrace_model_text_v1* error) -> std::int32_t {
      if (index >= current()->gpus) return say(error, "the fake has no such GPU");
      std::strcpy(info->name, "fake GPU");
      std::strcpy(info->compute_capability, "90");
      info->memory_bytes = 1 << 20;
      info->held_bytes = 100;
      info->held_peak_bytes = 200;
      info->used_bytes = 300;
      return 0;
    };
    t.set_threads = [](std::int32_t count) { current()->threads = count; };
    t.open = [](const headrace_model_open_v1* args, void** model,
                headrace_model_text_v1* error) -> std::int32_t {
      FakeModelRuntime& fake = *current();
      if (!fake.open_error.empty()) return say(error, fake.open_error);
      ++fake.opened;
      fake.path = args->path;
      *model = new Loaded;
      return 0;
    };
    t.close = [](void* model) {
      ++current()->closed;
      delete static_cast<Loaded*>(model);
    };
    t.call_spec = [](void*, headrace_model_text_v1*, headrace_model_text_v1*,
                     headrace_model_text_v1*) -> std::int32_t { return 0; };
    t.bind = [](void* model, std::uint64_t index, const headrace_tensor_v1* tensor,
                headrace_model_text_v1*) -> std::int32_t {
      ++current()->bound;
      auto& inputs = static_cast<Loaded*>(model)->inputs;
      if (inputs.size() <= index) inputs.resize(index + 1);
      inputs[index] = *tensor;
      return 0;
    };
    t.run = run;
    t.release = [](void* handle) {
      if (current() != nullptr) ++current()->released;
      ::operator delete(handle);
    };
    t.constants = [](void*, headrace_constant_v1 tell, void* context,
                     headrace_model_text_v1*) -> std::int32_t {
      FakeModelRuntime& fake = *current();
      const std::scoped_lock lock(fake.mutex);
      for (const auto& [name, values] : fake.constants) {
        headrace_tensor_v1 tensor{};
        tensor.data = values.data();
        tensor.rank = 1;
        tensor.shape[0] = static_cast<std::int64_t>(values.size());
        tensor.strides[0] = 1;
        tell(context, name.c_str(), &tensor);
      }
      return 0;
    };
    t.replace_constants = [](void*, std::uint64_t count, const char* const* names,
                             const headrace_tensor_v1* tensors, headrace_model_text_v1*) -> std::int32_t {
      FakeModelRuntime& fake = *current();
      const std::scoped_lock lock(fake.mutex);
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto* values = static_cast<const float*>(tensors[i].data);
        fake.constants[names[i]].assign(values, values + tensors[i].shape[0]);
      }
      return 0;
    };
    t.allocate = [](headrace_tensor_v1* tensor, headrace_model_text_v1*) -> std::int32_t {
      return fill(*tensor), 0;
    };
    t.copy = [](const headrace_tensor_v1* to, const headrace_tensor_v1* from,
                headrace_model_text_v1*) -> std::int32_t {
      std::memcpy(const_cast<void*>(to->data), from->data, bytes_of(*from));
      return 0;
    };
    t.synchronize = [](std::int32_t, std::int32_t, void* stream, headrace_model_text_v1*) -> std::int32_t {
      current()->waited.push_back(stream);
      return 0;
    };
    t.check_device = [](std::int32_t, std::int32_t, std::uint64_t index,
                        headrace_check_v1* check) -> std::int32_t {
      if (index > 0) return static_cast<std::int32_t>(Code::not_found);
      std::strcpy(check->name, "allocation");
      check->passed = 1;
      return 0;
    };
    return t;
  }
};

}  // namespace headrace
