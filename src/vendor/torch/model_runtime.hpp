// SPDX-License-Identifier: Apache-2.0
// libheadrace_torch.so, the one shared object that links libtorch: found, compared with the torch that is
// there, loaded.
#pragma once

#include "base/errors.hpp"

#include <headrace/plugin/model_runtime_v1.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

/// What stands in libheadrace_torch.json beside the library: the torch that it was built for.
struct TorchBuildNote {
  std::string torch;        ///< "2.13.0+cpu"
  std::string accelerator;  ///< "cpu", "cuda", "rocm"
  std::string folder;       ///< where that torch lay

  ///   errors  corrupt
  [[nodiscard]] static Result<TorchBuildNote> parse(std::string_view json);
};

struct ModelRuntime {
  const headrace_model_runtime_v1* table = nullptr;
  std::string library;  ///< where it was found
};

/// Loads the library of that path; empty: the one beside this library. Takes as long as libtorch does, some
/// 100 ms, the first time in a process.
///   errors  not_supported (there is none, it does not load, or the torch that is there is not the one that
///   it was built
///           for: both, and the command that mends it), corrupt (its table is not one)
[[nodiscard]] Result<ModelRuntime> load_model_runtime(const std::string& path);

/// What is wrong with a table; nothing if it can be used.
[[nodiscard]] Result<void> check_model_runtime(const headrace_model_runtime_v1* table);

/// Two versions whose libraries fit each other: the same release, whatever was built into it ("2.13.0+cpu"
/// and "2.13.0" do, "2.13.0" and "2.13.1" do, "2.12.1" and "2.13.0" do not).
[[nodiscard]] bool same_torch_release(std::string_view one, std::string_view other);

/// Room for the sentence of an entry that fails.
class RuntimeText {
 public:
  /// Not set to anything: memory that is not written to is not touched.
  explicit RuntimeText(std::size_t capacity = 4096) : bytes_(new char[capacity]), capacity_(capacity) {}
  [[nodiscard]] headrace_model_text_v1* get() {
    text_ = {sizeof text_, bytes_.get(), capacity_, 0};
    return &text_;
  }
  [[nodiscard]] std::string_view view() const { return {bytes_.get(), text_.length}; }
  /// The entry's answer as an error: its code, its sentence.
  [[nodiscard]] Error error(std::int32_t code) const;

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_;
  headrace_model_text_v1 text_{};
};

}  // namespace headrace
