// SPDX-License-Identifier: Apache-2.0
#include "collectives/pickle.hpp"

#include <nlohmann/json.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace::collectives {
namespace {

using Json = nlohmann::ordered_json;

// As in Python's pickletools.
namespace opcode {
constexpr char mark = '(', empty_dict = '}', set_items = 'u', empty_list = ']', appends = 'e', none = 'N',
               binary_text = 'X', binary_float = 'G', stop = '.';
constexpr std::string_view protocol_2 = "\x80\x02", yes = "\x88", no = "\x89", long_of_9_bytes = "\x8a\x09";
}  // namespace opcode

class Pickler {
 public:
  void value(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        return object(value);
      case Json::value_t::array:
        return array(value);
      case Json::value_t::string:
        return text(value.get_ref<const std::string&>());
      case Json::value_t::boolean:
        bytes_ += value.get<bool>() ? opcode::yes : opcode::no;
        return;
      case Json::value_t::number_integer:
        return number(static_cast<std::uint64_t>(value.get<std::int64_t>()), value.get<std::int64_t>() < 0);
      case Json::value_t::number_unsigned:
        return number(value.get<std::uint64_t>(), false);
      case Json::value_t::number_float:
        return real(value.get<double>());
      default:
        bytes_ += opcode::none;
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  void object(const Json& object) {
    bytes_ += opcode::empty_dict;
    bytes_ += opcode::mark;
    for (const auto& [name, entry] : object.items()) {
      text(name);
      value(entry);
    }
    bytes_ += opcode::set_items;
  }
  void array(const Json& array) {
    bytes_ += opcode::empty_list;
    bytes_ += opcode::mark;
    for (const Json& entry : array) value(entry);
    bytes_ += opcode::appends;
  }
  void text(const std::string& text) {
    bytes_ += opcode::binary_text;
    little_endian(text.size(), 4);
    bytes_ += text;
  }
  void number(std::uint64_t number, bool is_negative) {
    bytes_ += opcode::long_of_9_bytes;
    little_endian(number, 8);
    bytes_ += is_negative ? '\xff' : '\0';  // the sign, in two's complement
  }
  void real(double number) {
    bytes_ += opcode::binary_float;
    const auto bits = std::bit_cast<std::uint64_t>(number);
    for (int shift = 56; shift >= 0; shift -= 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
  }
  void little_endian(std::uint64_t number, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(number >> (8 * i) & 0xff);
  }

  std::string bytes_{opcode::protocol_2};
};

}  // namespace

std::string pickle_of(const Json& value) {
  Pickler pickler;
  pickler.value(value);
  return pickler.take() + opcode::stop;
}

}  // namespace headrace::collectives
