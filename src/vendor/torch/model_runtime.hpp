// SPDX-License-Identifier: Apache-2.0
// libheadrace_torch.so, the one shared object that links libtorch: found, compared with the installed torch,
// loaded.
#pragma once

#include "base/errors.hpp"

#include <headrace/plugin/model_runtime_v1.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

/// The content of libheadrace_torch.json beside the library: the torch that it was built for.
struct TorchBuildNote {
  std::string torch;        ///< "2.13.0+cpu"
  std::string accelerator;  ///< "cpu", "cuda", "rocm"
  std::string folder;       ///< folder of that torch

  ///   errors  corrupt
  [[nodiscard]] static Result<TorchBuildNote> parse(std::string_view json);
};

struct ModelRuntime {
  const headrace_model_runtime_v1* table = nullptr;
  std::string library;  ///< where it was found
};

/// Loads the library at `path`; empty: the one beside this library. The first call in a process takes as long
/// as loading libtorch, about 100 ms.
///   errors  not_supported (there is none, it does not load, or the installed torch is not the one of the
///           build: both versions and the command that repairs it), corrupt (its table is not valid)
[[nodiscard]] Result<ModelRuntime> load_model_runtime(const std::string& path);

/// What is wrong with a table; ok if it can be used.
[[nodiscard]] Result<void> check_model_runtime(const headrace_model_runtime_v1* table);

/// Whether two versions are the same release, so that their libraries fit. The local version does not matter:
/// "2.13.0+cpu" and "2.13.0" fit, "2.13.0" and "2.13.1" fit, "2.12.1" and "2.13.0" do not.
[[nodiscard]] bool same_torch_release(std::string_view one, std::string_view other);

/// A buffer for the sentence of an entry that fails.
class RuntimeText {
 public:
  /// Not initialised: memory that no entry writes is never touched.
  explicit RuntimeText(std::size_t capacity = 4096) : bytes_(new char[capacity]), capacity_(capacity) {}
  [[nodiscard]] headrace_model_text_v1* get() {
    text_ = {sizeof text_, bytes_.get(), capacity_, 0};
    return &text_;
  }
  [[nodiscard]] std::string_view view() const { return {bytes_.get(), text_.length}; }
  /// The entry's result as an error: its code, its sentence.
  [[nodiscard]] Error error(std::int32_t code) const;

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_;
  headrace_model_text_v1 text_{};
};

}  // namespace headrace
