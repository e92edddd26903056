// SPDX-License-Identifier: Apache-2.0
// A file that is written as FILE.part and gets its name when it is whole. FILE.part.state lists the tensors
// that are complete. A process that is killed leaves both files, and the next one resumes with them. Both are
// made for this user alone, and found ones are used only if nobody else can have written them; the whole file
// gets the mode that the umask gives.
#pragma once

#include <headrace/result.hpp>

#include "cli/common/file_descriptor.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace headrace::cli {

/// What to do if a file of that name exists when the whole one gets its name.
enum class IfTaken { keep, replace };

/// Renames `from` to `to`. On failure it returns false and sets errno: EEXIST if `to` exists and shall be
/// kept. On file systems without RENAME_NOREPLACE a file that appears at the last moment is replaced.
[[nodiscard]] bool give_name(const std::string& from, const std::string& to, IfTaken if_taken);

/// The error for an output that exists and shall be kept.
[[nodiscard]] Error name_taken(const std::string& path);
/// Checks whether a file may be written at `path`.
///   errors  invalid_argument (it is a folder; it exists and shall be kept)
[[nodiscard]] Result<void> check_output(const std::string& path, IfTaken if_taken);

class OutputFile {
 public:
  /// Makes FILE.part with `bytes` bytes, or resumes with the one that exists if it has the same plan. `plan`
  /// is a hash of everything that decides the content of the file.
  ///   errors  exhausted (the disk is full; the text has the free bytes), would_block (another process writes
  ///   it),
  ///           invalid_argument (the path cannot be written to; what lies at FILE.part is no file of this
  ///           user)
  static Result<OutputFile> open(const std::string& path, std::uint64_t bytes, std::uint64_t plan,
                                 bool resume);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  /// The mapped file, for small writes and for reading. The first write to each memory page costs a page
  /// fault: use write() for large data.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  ///   errors  exhausted (the disk is full), internal
  Result<void> write(std::uint64_t offset, std::span<const std::byte> part);
  /// The complete tensors of an earlier process: number and checksum.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& complete() const { return complete_; }
  /// Whether FILE.part had another plan and was emptied.
  [[nodiscard]] bool started_over() const { return started_over_; }
  Result<void> note_complete(std::uint64_t part, std::uint64_t checksum);
  /// Gives the file its name. `bytes()` is empty afterwards.
  ///   errors  invalid_argument (a file of that name exists and shall be kept; FILE.part stays), internal
  Result<void> finish(bool sync, IfTaken if_taken);

 private:
  OutputFile() = default;
  Result<void> resume_or_start(std::uint64_t bytes, std::uint64_t plan, bool resume);
  Result<void> map(std::uint64_t bytes);
  void unmap();

  std::string path_, part_path_, state_path_;
  FileDescriptor part_, state_;
  std::span<std::byte> bytes_;
  std::map<std::uint64_t, std::uint64_t> complete_;
  bool started_over_ = false;
};

}  // namespace headrace::cli
