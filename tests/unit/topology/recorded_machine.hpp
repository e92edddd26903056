// SPDX-License-Identifier: Apache-2.0
// A recorded machine as files in a folder of its own. The folder is removed with the object.
#pragma once

#include "support/temporary_folder.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace headrace::test {

class RecordedMachine {
 public:
  /// Writes the files of tests/fixtures/topology/<name>.sysfs; without a name the folder stays empty.
  explicit RecordedMachine(const std::string& name = "") {
    if (name.empty()) return;
    std::ifstream record(HEADRACE_TEST_DIR "/fixtures/topology/" + name + ".sysfs");
    if (!record) throw std::runtime_error("no recorded machine " + name);
    for (std::string line; std::getline(record, line);) {
      const std::size_t colon = line.find(':');
      append(line.substr(0, colon), line.substr(colon + 1));
    }
  }

  /// Appends a line to one of the files.
  void append(const std::string& path, const std::string& line) {
    std::filesystem::create_directories((root() + path).substr(0, (root() + path).rfind('/')));
    std::ofstream(root() + path, std::ios::app) << line << "\n";
  }
  void remove(const std::string& path) { std::filesystem::remove_all(root() + path); }
  void replace(const std::string& path, const std::string& line) {
    remove(path);
    append(path, line);
  }

  [[nodiscard]] const std::string& root() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_;
};

}  // namespace headrace::test
