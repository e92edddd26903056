// SPDX-License-Identifier: Apache-2.0
// A file that comes into being: written as FILE.part beside it, with what is complete noted in
// FILE.part.state, and given its name when it is whole. A process that was killed leaves both, and the next
// one goes on from there.
#pragma once

#include <headrace/result.hpp>

#include "cli/file_descriptor.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace headrace::cli {

/// What becomes of a file that has the name by the time the whole one is to get it.
enum class IfTaken { keep, replace };

/// Renames `from` to `to`; false with errno, EEXIST where something has that name and is to stay. Where the
/// file system cannot say no, what has come to bear the name meanwhile is replaced.
[[nodiscard]] bool give_name(const std::string& from, const std::string& to, IfTaken if_taken);

/// What to do where a name is taken that is to stay.
[[nodiscard]] Error name_taken(const std::string& path);
/// Whether a file may be written there.
///   errors  invalid_argument (a folder; something has the name and is to stay)
[[nodiscard]] Result<void> check_output(const std::string& path, IfTaken if_taken);

class OutputFile {
 public:
  /// Makes or takes up FILE.part with room for `bytes`. `plan` is a number that stands for everything that
  /// decides what lies where: only a part of the same plan is taken up.
  ///   errors  exhausted (no room on the disk: how much is missing), would_block (another process is at it),
  ///           invalid_argument (cannot be written there)
  static Result<OutputFile> open(const std::string& path, std::uint64_t bytes, std::uint64_t plan,
                                 bool resume);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  /// The file as memory: for what is written here and there, and to read. Each page of it that is written to
  /// for the first time costs a fault; bulk goes through write().
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  ///   errors  exhausted (the disk is full), internal
  Result<void> write(std::uint64_t offset, std::span<const std::byte> part);
  /// What an earlier process noted: part number and checksum.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& complete() const { return complete_; }
  /// Whether there was a part of another plan, which is gone now.
  [[nodiscard]] bool started_over() const { return started_over_; }
  Result<void> note_complete(std::uint64_t part, std::uint64_t checksum);
  /// Gives the file its name. `bytes()` is empty afterwards.
  ///   errors  invalid_argument (something else has the name and is to stay: so does the part),
  ///   internal
  Result<void> finish(bool sync, IfTaken if_taken);

 private:
  OutputFile() = default;
  void unmap();

  std::string path_, part_path_, state_path_;
  FileDescriptor part_, state_;
  std::span<std::byte> bytes_;
  std::map<std::uint64_t, std::uint64_t> complete_;
  bool started_over_ = false;
};

}  // namespace headrace::cli
