// SPDX-License-Identifier: Apache-2.0
// A package of torch's AOTInductor: an archive (`model.pt2`), or the folder to which one was unpacked. It is
// read without libtorch, and nothing in it is run.
//
//   <root>/data/aotinductor/<model>/<hash>.wrapper.so              compiled code with its weights
//   <root>/data/aotinductor/<model>/<hash>.wrapper_metadata.json   the machine it is for; the author's notes
//   <root>/data/aotinductor/<model>/<hash>.wrapper.cpp             generated source, if it was kept
//   <root>/models/<model>.json                                     exported program, if it was packed too
//   <root>/extra/headrace.json                                     inputs and outputs, by Headrace's export
#pragma once

#include "formats/file_reader.hpp"
#include "formats/zip_directory.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

class Package {
 public:
  ///   errors  not_found, corrupt (how), invalid_argument (it contains no compiled model), not_supported
  [[nodiscard]] static Result<Package> open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_folder() const { return !archive_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// The names of the models, sorted.
  [[nodiscard]] const std::vector<std::string>& models() const { return models_; }
  /// Only for a package that is an archive.
  [[nodiscard]] const formats::ZipDirectory& directory() const { return directory_; }
  [[nodiscard]] const formats::FileReader& archive() const { return *archive_; }

  /// The whole text of the member with this name below the root; nullopt if there is none.
  ///   errors  corrupt (its checksum is wrong, or it exceeds the limit for texts)
  [[nodiscard]] Result<std::optional<std::string>> text(const std::string& name) const;
  /// The member of the model's folder whose name has this ending ("wrapper.so"), below the root; nullopt if
  /// there is none.
  [[nodiscard]] std::optional<std::string> member_of(const std::string& model, std::string_view ending) const;
  /// The first bytes of a member, at most `bytes`.
  [[nodiscard]] Result<std::string> beginning(const std::string& name, std::size_t bytes) const;

 private:
  Package() = default;
  Result<void> read_names();
  Result<std::string> read(const std::string& name, std::size_t most) const;

  std::string path_, root_;  ///< root: "mlp/", or empty
  std::optional<formats::FileReader> archive_;
  formats::ZipDirectory directory_;
  std::vector<std::string> names_;  ///< of all members, below the root
  std::vector<std::string> models_;
  std::uint64_t bytes_ = 0;
};

}  // namespace headrace
