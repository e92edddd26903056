// SPDX-License-Identifier: Apache-2.0
// Models compiled by AOTInductor, run without Python. A package (`model.pt2`) is read and checked before any
// of its code is loaded. Every input is checked before every run: the compiled code does not check, and a
// wrong shape gives wrong numbers or a crash.
//
// One shared object, libheadrace_torch.so, links libtorch. It is loaded when the first model is opened.
#pragma once

#include <headrace/result.hpp>
#include <headrace/telemetry.hpp>
#include <headrace/tensor.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct ModelOptions {
  /// Name of the model in the package, which may hold several.
  std::string model_name = "model";
  /// "cpu", "cuda", "cuda:1"; empty: the device that the package was compiled for.
  std::string device = {};
  /// Number of runs at the same time; further callers wait. Runners share weights in host memory.
  std::size_t runners = 1;
  /// Threads that torch uses inside one operation, up to 1024; 0: unchanged. It holds for the whole process.
  /// Loops in the package's own code use the number that was fixed at export.
  int threads = 0;
  /// Values by option name (list_model_options() lists them). They win over environment and configuration
  /// file.
  std::map<std::string, std::string> options = {};
};

/// One dimension of a tensor that a model takes or gives.
struct DimensionSpec {
  std::int64_t least = 0;
  std::optional<std::int64_t> most = std::nullopt;  ///< nullopt: no bound
  /// Of a dynamic dimension: "batch". In one run all dimensions of one name have one length.
  std::string name = {};
  std::string expression = {};  ///< if it follows from others: "2*batch"; least and most then have no meaning

  [[nodiscard]] bool fixed() const noexcept { return expression.empty() && most == least; }
};

/// The values that an input of integers may have.
struct ValueRange {
  std::int64_t least = 0, most = 0;
};

/// What is known of an input or output before a run. What the package does not say is unknown and not
/// checked.
struct TensorSpec {
  std::string name;
  std::optional<DType> dtype;
  bool shape_known = false;
  std::vector<DimensionSpec> shape;   ///< if shape_known
  std::vector<std::int64_t> strides;  ///< in elements; empty: row-major without gaps is required
  bool optional = false;              ///< may be omitted (a view with null data)
  bool mutated = false;               ///< the model writes into the input's memory
  /// Of an input whose values the model uses as indices. Not checked in the memory of a GPU.
  std::optional<ValueRange> values = std::nullopt;
};

/// The text of a specification: "float32 [batch 1..64, 256]".
HEADRACE_API std::string spec_text(const TensorSpec& spec);

/// The source of the description of inputs and outputs, best first.
enum class SpecSource : std::int32_t {
  exported,  ///< Headrace's export wrote it into the package: names, types, ranges of all inputs and outputs
  exported_program,  ///< the package contains the exported program
  generated_code,    ///< checks in the generated C++: types and ranges of inputs; the compiler's names
  nothing,           ///< names and counts alone: inputs are not checked
};
/// The name of a source: "exported", "exported program", "generated code", "nothing".
HEADRACE_API std::string_view spec_source_name(SpecSource source) noexcept;

/// A weight or buffer inside a package.
struct ConstantInfo {
  std::string name;  ///< as in the module: "layers.0.weight"
  DType dtype = DType::float32;
  Shape shape;
};

/// What a package says of itself, and whether this machine can run it.
struct ModelInfo {
  std::string path;
  std::string model_name;
  std::vector<std::string> model_names;  ///< of all models in the package
  std::uint64_t package_bytes = 0;
  Device device;
  std::vector<TensorSpec> inputs, outputs;
  SpecSource spec_source = SpecSource::nothing;
  std::string call_spec_in, call_spec_out;  ///< the layout of Python's arguments; only of an open model
  std::string torch_version;       ///< of the torch that compiled it; empty: the package does not say
  std::string headrace_version;    ///< of the Headrace that exported it; empty: Headrace did not export it
  std::string machine;             ///< "x86_64"
  std::string platform;            ///< "linux"
  std::string cpu_isa;             ///< instructions that its CPU code needs: "AVX512 AVX512_VNNI"
  std::string compute_capability;  ///< of its GPU code: "90"
  std::map<std::string, std::string> metadata;  ///< other entries that the package's author wrote
  std::vector<std::string> warnings;            ///< what is not checked, and why
  /// Why this machine cannot run it (another machine, CPU or GPU is needed); empty: no reason found.
  std::string refusal;
};

/// The same as one JSON object, as `headrace inspect` prints it. Bytes that are not UTF-8 are replaced.
HEADRACE_API std::string model_info_json(const ModelInfo& info);

/// The libtorch that was found.
struct ModelRuntimeInfo {
  std::string library;            ///< path of libheadrace_torch.so
  std::string built_for;          ///< torch's version at build: "2.13.0+cpu"
  std::string built_accelerator;  ///< "cpu", "cuda", "rocm"
  std::string found;              ///< torch's version at run time
  std::string found_accelerator;
  int device_count = 0;        ///< GPUs that torch sees
  std::string cpu_capability;  ///< instructions that torch's own kernels use: "AVX512"
};

/// Times of one model.
struct ModelTiming {
  std::uint64_t load_ns = 0;  ///< of the whole open
  std::uint64_t unpack_ns =
      0;  ///< part of load_ns: cache lookup, and unpacking if the cache did not have the package
  bool unpacked = false;     ///< this open unpacked the package into the cache
  HistogramSnapshot run_ns;  ///< of every run: from the call to its outputs, including the device's work
};

/// Memory of one model.
struct ModelMemory {
  std::uint64_t package_bytes = 0;
  std::uint64_t constant_bytes = 0;  ///< of the constants that `constants` lists
  std::uint64_t process_bytes = 0;   ///< resident memory of the whole process
  /// Of the model's GPU, 0 on a CPU: what torch holds in this process, the most that it held, and what all
  /// processes together use. The first two lack the constants: AOTInductor allocates them without torch's
  /// allocator.
  std::uint64_t device_bytes = 0;
  std::uint64_t device_peak_bytes = 0;
  std::uint64_t device_used_bytes = 0;
};

struct RunOptions {
  /// GPU: the stream to run on, of the model's device (CUstream or cudaStream_t; null: the default stream).
  /// nullopt: torch's current stream on this thread, which is the default stream unless the thread changed
  /// it.
  std::optional<void*> stream = std::nullopt;
  /// GPU: wait for the outputs. False: they are ready in the order of the stream.
  bool synchronize = true;
};

/// An open model. Movable; run() and the readers may be called from any threads at once.
class Model {
 public:
  /// Reads what the package says, without loading its code. Needs no torch.
  ///   errors  not_found, corrupt (not a package, or damaged: how), invalid_argument (no model of that name:
  ///           which names there are)
  static HEADRACE_API Result<ModelInfo> inspect(const std::string& path,
                                                const std::string& model_name = "model");

  /// Checks the package against this machine, unpacks it into the cache if needed, and loads it.
  ///   errors  as inspect; not_supported (no torch, or not the torch that Headrace was built for; the package
  ///           needs another machine, CPU or GPU: which, and what to do), backend_failed (torch's words)
  static HEADRACE_API Result<Model> open(const std::string& path, ModelOptions options = {});
  HEADRACE_API ~Model();
  HEADRACE_API Model(Model&&) noexcept;
  HEADRACE_API Model& operator=(Model&&) noexcept;

  [[nodiscard]] HEADRACE_API const ModelInfo& info() const noexcept;
  /// The index of the input of that name; nullopt if there is none.
  [[nodiscard]] HEADRACE_API std::optional<std::size_t> input_index(std::string_view name) const noexcept;

  /// Runs the model once. An input with the same memory, type and shape as in an earlier run of the runner
  /// costs one comparison.
  ///   shapes  as info().inputs says, in its order; every input is checked first
  ///   owns    the inputs' memory stays the caller's; it is read (if `mutated`, written) until the call
  ///           returns, or without `synchronize` until the stream has passed the run. Outputs are new memory
  ///           of the model's device
  ///   errors  invalid_argument (which input, its value and the expected value; a stream for a model on the
  ///           CPU), backend_failed (torch's words)
  [[nodiscard]] HEADRACE_API Result<std::vector<Tensor>> run(std::span<const TensorView> inputs,
                                                             const RunOptions& options = {});
  /// The same into a vector that can be used many times; its earlier tensors are freed.
  HEADRACE_API Result<void> run(std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                                const RunOptions& options = {});
  /// Waits until a stream of the model's GPU has done all work that it holds: for runs without `synchronize`.
  /// Returns at once if the model runs on the CPU.
  ///   errors  backend_failed (torch's words)
  [[nodiscard]] HEADRACE_API Result<void> wait(std::optional<void*> stream = std::nullopt) const;
  /// The errors that run would return for the inputs, without running.
  [[nodiscard]] HEADRACE_API Result<void> check(std::span<const TensorView> inputs) const;

  /// The weights and buffers of the package, without constants that the compiler computed from them.
  [[nodiscard]] HEADRACE_API Result<std::vector<ConstantInfo>> constants() const;
  /// Replaces the values of some constants without loading the package again. Waits for the current runs.
  ///   errors  invalid_argument (no constant of that name, or another type or shape: which); nothing is
  ///           changed then
  HEADRACE_API Result<void> replace_constants(const std::map<std::string, TensorView>& values);

  /// A copy in the memory of `device`, ready when this returns; `device` may be the CPU too. On a GPU it
  /// follows torch's current stream and no other: the caller first waits for work on other streams.
  [[nodiscard]] HEADRACE_API Result<Tensor> copy_to(const TensorView& tensor, Device device);

  [[nodiscard]] HEADRACE_API ModelTiming timing() const;
  [[nodiscard]] HEADRACE_API ModelMemory memory() const;

 private:
  class Impl;
  explicit Model(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// One check of torch on one device.
struct DeviceCheck {
  std::string name;  ///< "allocation", "random float16", "matmul bfloat16", "large float32", ...
  bool passed = false;
  std::string detail;  ///< what was done and the size of the error, or why it failed
  double milliseconds = 0;
};

/// Loads libheadrace_torch.so if it is not loaded yet, and returns what it found.
///   errors  not_supported (not installed, or another torch: found and expected version, what to do)
HEADRACE_API Result<ModelRuntimeInfo> model_runtime(const std::map<std::string, std::string>& options = {});
/// Allocates, draws random numbers, multiplies matrices and processes one large tensor, in float32, float16
/// and bfloat16.
///   errors  as model_runtime; failures of the device are in the checks
HEADRACE_API Result<std::vector<DeviceCheck>> check_device(
    Device device, const std::map<std::string, std::string>& options = {});

struct OptionInfo;
/// Lists every option of models, its value and the source of the value.
HEADRACE_API Result<std::vector<OptionInfo>> list_model_options(
    const std::map<std::string, std::string>& options = {});

}  // namespace headrace
