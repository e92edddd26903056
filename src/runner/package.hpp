// SPDX-License-Identifier: Apache-2.0
// A package that torch's AOTInductor wrote: an archive (`model.pt2`), or the folder that one was unpacked to.
// Read without libtorch and without running anything in it.
//
//   <root>/data/aotinductor/<model>/<hash>.wrapper.so              the compiled code with its weights
//   <root>/data/aotinductor/<model>/<hash>.wrapper_metadata.json   for which machine; what its author noted
//   <root>/data/aotinductor/<model>/<hash>.wrapper.cpp             the generated source, where it was kept
//   <root>/models/<model>.json                                     the exported program, where it was packed
//   too <root>/extra/headrace.json                                     inputs and outputs, from Headrace's
//   own export
#pragma once

#include "runner/zip_directory.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

class Package {
 public:
  ///   errors  not_found, corrupt (how), invalid_argument (it holds no compiled model), not_supported
  [[nodiscard]] static Result<Package> open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_folder() const { return !archive_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// The names of the models, sorted.
  [[nodiscard]] const std::vector<std::string>& models() const { return models_; }
  /// Of a package that is an archive.
  [[nodiscard]] const ZipDirectory& directory() const { return directory_; }
  [[nodiscard]] const FileReader& archive() const { return *archive_; }

  /// The whole text of the member whose name, below the root, is `name`; nothing if there is none.
  ///   errors  corrupt (its checksum is wrong, or it is longer than any text of a package)
  [[nodiscard]] Result<std::optional<std::string>> text(const std::string& name) const;
  /// The member in the model's folder whose name ends so ("wrapper.so"), below the root; nothing if there is
  /// none.
  [[nodiscard]] std::optional<std::string> member_of(const std::string& model, std::string_view ending) const;
  /// The first bytes of a member, at most as many as asked for.
  [[nodiscard]] Result<std::string> beginning(const std::string& name, std::size_t bytes) const;

 private:
  Package() = default;
  Result<void> read_names();
  Result<std::string> read(const std::string& name, std::size_t most) const;

  std::string path_, root_;  ///< root: "mlp/", or empty
  std::optional<FileReader> archive_;
  ZipDirectory directory_;
  std::vector<std::string> names_;  ///< of all members, below the root
  std::vector<std::string> models_;
  std::uint64_t bytes_ = 0;
};

}  // namespace headrace
