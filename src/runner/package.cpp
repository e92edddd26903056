// SPDX-License-Identifier: Apache-2.0
#include "runner/package.hpp"

#include "runner/crc32.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

namespace headrace {
namespace {

constexpr std::string_view models_folder = "data/aotinductor/";
constexpr std::size_t most_text = std::size_t{64} << 20;

Result<std::vector<std::string>> files_below(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error))
    if (entry->is_regular_file(error))
      names.push_back(entry->path().lexically_relative(folder).generic_string());
  if (error) return make_error(Code::invalid_argument, "the folder cannot be read: {}", error.message());
  std::ranges::sort(names);
  return names;
}

/// The folder in the archive that contains the whole package: "mlp/", or empty.
std::string root_of(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::size_t at = name.find(models_folder);
    if (at == 0) return {};
    if (at != std::string::npos && name[at - 1] == '/') return name.substr(0, at);
  }
  return {};
}

}  // namespace

Result<Package> Package::open(const std::string& path) {
  Package package;
  package.path_ = path;
  std::error_code ignored;
  Result<void> read;
  if (std::filesystem::is_directory(path, ignored)) {
    HEADRACE_TRY(names, files_below(path));
    package.names_ = std::move(names);
    for (const std::string& name : package.names_)
      package.bytes_ += std::filesystem::file_size(std::filesystem::path(path) / name, ignored);
  } else {
    HEADRACE_TRY(file, formats::FileReader::open(path));
    package.archive_ = std::move(file);
    package.bytes_ = package.archive_->bytes();
    auto directory =
        formats::ZipDirectory::read(package.bytes_, [&](std::uint64_t offset, std::span<std::byte> into) {
          return package.archive_->read(offset, into);
        });
    if (!directory) return std::move(directory).error().within(path);
    package.directory_ = std::move(*directory);
    for (const formats::ZipMember& member : package.directory_.members) package.names_.push_back(member.name);
  }
  if (auto named = package.read_names(); !named) return std::move(named).error().within(path);
  return package;
}

Result<void> Package::read_names() {
  root_ = root_of(names_);
  std::vector<std::string> below;
  std::set<std::string> models;
  for (std::string& name : names_) {
    if (!name.starts_with(root_)) continue;
    name.erase(0, root_.size());
    if (name.starts_with(models_folder)) {
      const std::size_t end = name.find('/', models_folder.size());
      if (end != std::string::npos)
        models.insert(name.substr(models_folder.size(), end - models_folder.size()));
    }
    below.push_back(std::move(name));
  }
  names_ = std::move(below);
  models_.assign(models.begin(), models.end());
  if (models_.empty())
    return make_error(
        Code::invalid_argument,
        "it contains no compiled model (nothing in {}): make one with `python -m headrace.export`, or "
        "torch._inductor.aoti_compile_and_package",
        models_folder);
  return {};
}

Result<std::string> Package::read(const std::string& name, std::size_t most) const {
  std::string text;
  if (!archive_) {
    HEADRACE_TRY(file, formats::FileReader::open((std::filesystem::path(path_) / (root_ + name)).string()));
    text.resize(static_cast<std::size_t>(std::min<std::uint64_t>(file.bytes(), most)));
    HEADRACE_TRY_VOID(file.read(0, std::as_writable_bytes(std::span(text))));
    return text;
  }
  const formats::ZipMember* const member = directory_.find(root_ + name);
  if (member == nullptr) return make_error(Code::not_found, "it has no member {}", root_ + name);
  const auto reader = [this](std::uint64_t offset, std::span<std::byte> into) {
    return archive_->read(offset, into);
  };
  HEADRACE_TRY(offset, directory_.data_offset(*member, reader));
  text.resize(static_cast<std::size_t>(std::min<std::uint64_t>(member->bytes, most)));
  HEADRACE_TRY_VOID(reader(offset, std::as_writable_bytes(std::span(text))));
  if (text.size() == member->bytes && crc32(std::as_bytes(std::span(text))) != member->crc)
    return make_error(Code::corrupt, "the checksum of its member {} is wrong: copy it again", member->name);
  return text;
}

Result<std::optional<std::string>> Package::text(const std::string& name) const {
  if (std::ranges::find(names_, name) == names_.end()) return std::optional<std::string>();
  auto found = read(name, most_text + 1);
  if (!found) return std::move(found).error().within(path_);
  if (found->size() > most_text)
    return make_error(Code::corrupt,
                      "{}: its member {} is longer than {} MiB, the limit for texts of a package", path_,
                      name, most_text >> 20);
  return std::optional(std::move(*found));
}

std::optional<std::string> Package::member_of(const std::string& model, std::string_view ending) const {
  const std::string folder = std::string(models_folder) + model + "/";
  for (const std::string& name : names_)
    if (name.starts_with(folder) && name.ends_with(ending)) return name;
  return std::nullopt;
}

Result<std::string> Package::beginning(const std::string& name, std::size_t bytes) const {
  auto found = read(name, bytes);
  if (!found) return std::move(found).error().within(path_);
  return found;
}

}  // namespace headrace
