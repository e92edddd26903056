// SPDX-License-Identifier: Apache-2.0
// Models compiled by AOTInductor, run without Python. A package (`model.pt2`) is read and checked before any
// of its code is loaded; every input is checked before every run, because the compiled code itself looks at
// none of them: a wrong shape gives wrong numbers or a crash.
//
// libtorch comes in through one shared object, libheadrace_torch.so, which is loaded when the first model is
// opened.
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
  /// Which model of the package: packages may hold several.
  std::string model_name = "model";
  /// "cpu", "cuda", "cuda:1"; empty: what the package was compiled for.
  std::string device = {};
  /// So many runs may go on at once; a caller more waits. Weights in host memory are shared among runners.
  std::size_t runners = 1;
  /// Threads that torch uses inside one operation, up to 1024. One setting a process; 0: as it is. Loops of
  /// the package's own were given their number at export.
  int threads = 0;
  /// Options by name, as list_model_options() gives them, over environment and configuration file.
  std::map<std::string, std::string> options = {};
};

/// One dimension of a tensor that a model takes or gives.
struct DimensionSpec {
  std::int64_t least = 0;
  std::optional<std::int64_t> most = std::nullopt;  ///< none: no bound
  std::string name =
      {};  ///< of a dynamic dimension: "batch". The same name has the same length everywhere in a run
  std::string expression = {};  ///< where it follows from others: "2*batch"; then least and most say nothing

  [[nodiscard]] bool fixed() const noexcept { return expression.empty() && most == least; }
};

/// What is known of an input or output before a run. What the package does not say is unknown, and not
/// checked.
struct TensorSpec {
  std::string name;
  std::optional<DType> dtype;
  bool shape_known = false;
  std::vector<DimensionSpec> shape;   ///< if shape_known
  std::vector<std::int64_t> strides;  ///< in elements; empty: row-major without gaps is asked for
  bool optional = false;              ///< may be left out (a view without data)
  bool mutated = false;               ///< the model writes into the input's memory
};

/// "float32 [batch 1..64, 256]".
HEADRACE_API std::string spec_text(const TensorSpec& spec);

/// Where the description of inputs and outputs came from, best first.
enum class SpecSource : std::int32_t {
  exported,  ///< Headrace's export wrote it into the package: names, types, ranges of all inputs and outputs
  exported_program,  ///< the exported program lies in the package
  generated_code,    ///< the checks in the generated C++: types and ranges of the inputs; names are the
                     ///< compiler's
  nothing,           ///< nothing but names and numbers: inputs are not checked
};
/// "exported", "exported program", "generated code", "nothing".
HEADRACE_API std::string_view spec_source_name(SpecSource source) noexcept;

/// A weight or buffer inside a package.
struct ConstantInfo {
  std::string name;  ///< as the module called it: "layers.0.weight"
  DType dtype = DType::float32;
  Shape shape;
};

/// What a package says of itself, and what this machine makes of it.
struct ModelInfo {
  std::string path;
  std::string model_name;
  std::vector<std::string> model_names;  ///< all that lie in the package
  std::uint64_t package_bytes = 0;
  Device device;
  std::vector<TensorSpec> inputs, outputs;
  SpecSource spec_source = SpecSource::nothing;
  std::string call_spec_in, call_spec_out;  ///< how Python's arguments were laid out; only of an open model
  std::string torch_version;                ///< that compiled it; empty: the package does not say
  std::string headrace_version;             ///< that exported it; empty: it was not Headrace
  std::string machine;                      ///< "x86_64"
  std::string platform;                     ///< "linux"
  std::string cpu_isa;                      ///< what its CPU code was compiled for: "AVX512 AVX512_VNNI"
  std::string compute_capability;           ///< of its GPU code: "90"
  std::map<std::string, std::string> metadata;  ///< all else that the package's author noted
  std::vector<std::string> warnings;            ///< what will not be checked, and why
  /// Why this machine cannot run it (another machine, CPU or GPU); empty: nothing speaks against it.
  std::string refusal;
};

/// The same as one JSON object, as `headrace inspect` prints it. Bytes that are not UTF-8 are replaced.
HEADRACE_API std::string model_info_json(const ModelInfo& info);

/// libtorch as it was found.
struct ModelRuntimeInfo {
  std::string library;            ///< path of libheadrace_torch.so
  std::string built_for;          ///< torch's version at build: "2.13.0+cpu"
  std::string built_accelerator;  ///< "cpu", "cuda", "rocm"
  std::string found;              ///< torch's version now
  std::string found_accelerator;
  int device_count = 0;        ///< GPUs that it sees
  std::string cpu_capability;  ///< the instructions that its own kernels use: "AVX512"
};

struct ModelTiming {
  std::uint64_t load_ns = 0;    ///< open, all of it
  std::uint64_t unpack_ns = 0;  ///< of that: looking the cache up, and unpacking where it had nothing
  bool unpacked = false;        ///< this open filled the cache
  HistogramSnapshot run_ns;     ///< of every run, from the call to its outputs, the device's own end included
};

struct ModelMemory {
  std::uint64_t package_bytes = 0;
  std::uint64_t constant_bytes = 0;  ///< of those that `constants` lists
  std::uint64_t process_bytes = 0;   ///< resident, the whole process
  /// Of the model's GPU; 0 on a CPU. What torch holds in this process, without the constants, which
  /// AOTInductor allocates beside torch's allocator; the most that it held; what all processes use together.
  std::uint64_t device_bytes = 0;
  std::uint64_t device_peak_bytes = 0;
  std::uint64_t device_used_bytes = 0;
};

struct RunOptions {
  /// GPU: the stream to run on (CUstream, cudaStream_t; null: the default stream) of the model's device;
  /// none: the one that torch has current on this thread, the default stream unless somebody changed that.
  std::optional<void*> stream = std::nullopt;
  /// GPU: wait for the outputs. Without, they are ready in the order of the stream.
  bool synchronize = true;
};

/// An open model. Movable; run() and the readers may be called from any threads at once.
class Model {
 public:
  /// Reads what the package says, without loading its code: needs no torch.
  ///   errors  not_found, corrupt (not a package, or damaged: how), invalid_argument (no model of that name:
  ///   which
  ///           there are)
  static HEADRACE_API Result<ModelInfo> inspect(const std::string& path,
                                                const std::string& model_name = "model");

  /// Checks the package against this machine, unpacks it into the cache if it is not there, loads it.
  ///   errors  as inspect; not_supported (no torch, or another one than Headrace was built for; another
  ///   machine, CPU or
  ///           GPU than the package's: which, and what to do), backend_failed (torch: its words)
  static HEADRACE_API Result<Model> open(const std::string& path, ModelOptions options = {});
  HEADRACE_API ~Model();
  HEADRACE_API Model(Model&&) noexcept;
  HEADRACE_API Model& operator=(Model&&) noexcept;

  [[nodiscard]] HEADRACE_API const ModelInfo& info() const noexcept;
  /// The place of the input of that name; nothing if there is none.
  [[nodiscard]] HEADRACE_API std::optional<std::size_t> input_index(std::string_view name) const noexcept;

  /// Runs once. Inputs that a runner has seen just so (same memory, type, shape) cost one comparison.
  ///   shapes  as info().inputs says, in its order; every input is checked first
  ///   owns    the inputs' memory stays the caller's and is read (where `mutated`, written) until the call
  ///   returns; with
  ///           synchronize off until the stream has passed it. Outputs are new memory of the model's device
  ///   errors  invalid_argument (which input, what it is and what was expected; a stream for a model on the
  ///   CPU), backend_failed (torch: its words)
  [[nodiscard]] HEADRACE_API Result<std::vector<Tensor>> run(std::span<const TensorView> inputs,
                                                             const RunOptions& options = {});
  /// The same into a vector that is used again and again; what was in it is freed.
  HEADRACE_API Result<void> run(std::span<const TensorView> inputs, std::vector<Tensor>& outputs,
                                const RunOptions& options = {});
  /// Waits until a stream of the model's GPU has passed all that it holds: for runs without `synchronize`.
  /// Returns at once where the model runs on the CPU.
  ///   errors  backend_failed (torch: its words)
  [[nodiscard]] HEADRACE_API Result<void> wait(std::optional<void*> stream = std::nullopt) const;
  /// What run would say of the inputs, without running.
  [[nodiscard]] HEADRACE_API Result<void> check(std::span<const TensorView> inputs) const;

  /// The weights and buffers of the package, without what the compiler worked out of them beforehand.
  [[nodiscard]] HEADRACE_API Result<std::vector<ConstantInfo>> constants() const;
  /// Puts other values in the place of some constants, without loading anew. Waits for the runs that go on.
  ///   errors  invalid_argument (no constant of that name, or another type or shape: which; nothing was
  ///   changed)
  HEADRACE_API Result<void> replace_constants(const std::map<std::string, TensorView>& values);

  /// A copy in the memory of `device`, ready when this returns; of a host tensor for the CPU too. On a GPU it
  /// follows what torch's current stream holds, and no other: what runs elsewhere is waited for first.
  [[nodiscard]] HEADRACE_API Result<Tensor> copy_to(const TensorView& tensor, Device device);

  [[nodiscard]] HEADRACE_API ModelTiming timing() const;
  [[nodiscard]] HEADRACE_API ModelMemory memory() const;

 private:
  class Impl;
  explicit Model(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// What torch can do on one device.
struct DeviceCheck {
  std::string name;  ///< "allocation", "random float16", "matmul bfloat16", "large float32", ...
  bool passed = false;
  std::string detail;  ///< what was done and how far it was off, or why it failed
  double milliseconds = 0;
};

/// Loads libheadrace_torch.so if nobody has yet, and says what it found.
///   errors  not_supported (not installed, or another torch: which is there, which was expected, what to do)
HEADRACE_API Result<ModelRuntimeInfo> model_runtime(const std::map<std::string, std::string>& options = {});
/// Allocates, draws random numbers, multiplies matrices and works on one large tensor, in float32, float16
/// and bfloat16.
///   errors  as model_runtime; what a device cannot do is in the checks
HEADRACE_API Result<std::vector<DeviceCheck>> check_device(
    Device device, const std::map<std::string, std::string>& options = {});

struct OptionInfo;
/// Every option of models with its value and where that came from.
HEADRACE_API Result<std::vector<OptionInfo>> list_model_options(
    const std::map<std::string, std::string>& options = {});

}  // namespace headrace
