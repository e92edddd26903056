// SPDX-License-Identifier: Apache-2.0
// Model packages for tests: a zip archive of stored members, as torch writes it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::testing {

using Members = std::vector<std::pair<std::string, std::string>>;

inline std::uint32_t zip_crc(std::string_view bytes) {
  std::uint32_t sum = ~std::uint32_t{0};
  for (const char byte : bytes) {
    sum ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return ~sum;
}

inline std::string zip_archive(const Members& members) {
  const auto put = [](std::string& to, std::uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(number >> (8 * i)));
  };
  std::string file, directory;
  for (const auto& [name, content] : members) {
    const std::size_t offset = file.size();
    const std::uint32_t sum = zip_crc(content);
    const auto common = [&](std::string& to) {
      put(to, 20, 2), put(to, 0, 2), put(to, 0, 2), put(to, 0, 4), put(to, sum, 4),
          put(to, content.size(), 4);
      put(to, content.size(), 4), put(to, name.size(), 2), put(to, 0, 2);
    };
    put(file, 0x04034b50, 4), common(file);
    file += name + content;
    put(directory, 0x02014b50, 4), put(directory, 20, 2), common(directory);
    put(directory, 0, 2), put(directory, 0, 2), put(directory, 0, 2), put(directory, 0, 4),
        put(directory, offset, 4);
    directory += name;
  }
  const std::size_t offset = file.size();
  file += directory;
  put(file, 0x06054b50, 4), put(file, 0, 4), put(file, members.size(), 2), put(file, members.size(), 2);
  put(file, directory.size(), 4), put(file, offset, 4), put(file, 0, 2);
  return file;
}

/// The texts in a package.
struct PackageText {
  std::string metadata = R"({"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "linux"})";
  std::string io_spec =
      R"({"headrace_io": 1, "headrace": "0.1.0", "torch": "2.13.0+cpu", "device": "cpu",
          "inputs": [{"name": "x", "dtype": "float32", "shape": [{"name": "batch", "min": 1, "max": 8}, 4]}],
          "outputs": [{"name": "y", "dtype": "float32", "shape": [{"name": "batch", "min": 1, "max": 8}, 4]}]})";
  std::string code = "no code: the fake loads none";
  Members more = {};
};

inline Members package_members(const PackageText& text = {}) {
  const std::string folder = "net/data/aotinductor/model/abc.wrapper";
  Members members{
      {folder + ".so", text.code}, {folder + "_metadata.json", text.metadata}, {"net/archive_format", "pt2"}};
  if (!text.io_spec.empty()) members.emplace_back("net/extra/headrace.json", text.io_spec);
  members.insert(members.end(), text.more.begin(), text.more.end());
  return members;
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Writes a package and returns its path.
inline std::string write_package(const std::string& folder, const PackageText& text = {},
                                 const std::string& name = "net.pt2") {
  std::string path = folder + "/" + name;
  write_file(path, zip_archive(package_members(text)));
  return path;
}

}  // namespace headrace::testing
