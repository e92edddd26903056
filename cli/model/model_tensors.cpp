// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_tensors.hpp"

#include "cli/common/errors.hpp"
#include "formats/mapped_file.hpp"
#include "formats/npy.hpp"
#include "formats/npy_file.hpp"
#include "formats/npz_layout.hpp"
#include "formats/safetensors.hpp"
#include "formats/tensor_file.hpp"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TypeRow {
  std::string_view file;  // its name in safetensors
  DType type;
};
constexpr std::array<TypeRow, dtype_count> types{{
    {"F32", DType::float32},
    {"F64", DType::float64},
    {"F16", DType::float16},
    {"BF16", DType::bfloat16},
    {"I8", DType::int8},
    {"I16", DType::int16},
    {"I32", DType::int32},
    {"I64", DType::int64},
    {"U8", DType::uint8},
    {"U16", DType::uint16},
    {"U32", DType::uint32},
    {"U64", DType::uint64},
    {"BOOL", DType::boolean},
    {"C64", DType::complex64},
    {"C128", DType::complex128},
    {"F8_E4M3", DType::float8_e4m3fn},
    {"F8_E5M2", DType::float8_e5m2},
}};

bool is_complex(DType type) { return type == DType::complex64 || type == DType::complex128; }
bool is_floating(DType type) {
  switch (type) {
    case DType::float32:
    case DType::float64:
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return true;
    default:
      return is_complex(type);
  }
}

// --- reading

/// A copy in aligned memory; the bytes of the file may not be aligned.
Result<Tensor> tensor_of(const formats::TensorInfo& info, std::span<const std::byte> bytes) {
  const auto row =
      std::find_if(types.begin(), types.end(), [&](const TypeRow& t) { return t.file == info.type->name; });
  if (row == types.end())
    return fail(Code::not_supported, "tensor \"{}\" has type {}, which models do not take", info.name,
                info.type->name);
  if (!Shape::fits(info.shape.size()))
    return fail(Code::not_supported, "tensor \"{}\" has {} dimensions; models take at most {}", info.name,
                info.shape.size(), most_tensor_dimensions);
  std::vector<std::int64_t> lengths(info.shape.begin(), info.shape.end());
  HEADRACE_CLI_TRY(tensor, Tensor::zeros(row->type, Shape(lengths)));
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

Result<std::vector<NamedTensor>> read_npy_file(const std::string& path) {
  HEADRACE_CLI_TRY(file, formats::NpyFile::open(path));
  auto tensor = tensor_of(file.info(), file.bytes());
  if (!tensor) return std::move(tensor).error().within(path);
  std::vector<NamedTensor> tensors;
  tensors.push_back({file.info().name, std::move(*tensor)});
  return tensors;
}

/// Finds the shape of nested lists. False if lists of one depth have different lengths, or are too deep.
bool take_shape(const Json& value, std::size_t depth, std::vector<std::int64_t>& shape) {
  if (!value.is_array()) return depth == shape.size();
  if (depth >= most_tensor_dimensions) return false;
  const auto length = static_cast<std::int64_t>(value.size());
  if (depth == shape.size())
    shape.push_back(length);
  else if (shape[depth] != length)
    return false;
  return std::all_of(value.begin(), value.end(),
                     [&](const Json& one) { return take_shape(one, depth + 1, shape); });
}

/// Collects the elements of nested lists in order. False if the lists are deeper than a tensor's dimensions.
bool flatten(const Json& value, std::size_t depth, std::vector<const Json*>& elements) {
  if (!value.is_array()) {
    elements.push_back(&value);
    return true;
  }
  return depth < most_tensor_dimensions && std::all_of(value.begin(), value.end(), [&](const Json& one) {
           return flatten(one, depth + 1, elements);
         });
}

/// A value for an error text. Lists and objects are not printed: they may be long, and too deep for the
/// stack.
std::string shown(const Json& value) {
  if (value.is_array()) return "a list";
  return value.is_object() ? "an object" : value.dump();
}

DType guess_type(const std::vector<const Json*>& elements) {
  const auto all = [&](auto is) {
    return !elements.empty() && std::all_of(elements.begin(), elements.end(), is);
  };
  if (all([](const Json* e) { return e->is_boolean(); })) return DType::boolean;
  if (all([](const Json* e) { return e->is_number_integer(); })) return DType::int64;
  return DType::float32;
}

/// The number of a JSON number, true or false. JSON has no numbers that are not finite: the texts "nan",
/// "inf" and "-inf" stand for them.
std::optional<double> number_in(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Sets an integer element of eight bytes exactly; a double could not. False if the type cannot hold the
/// number.
bool set_whole(Tensor& tensor, std::size_t index, const Json& value) {
  const auto bits = value.get<std::uint64_t>();  // two's complement if negative
  const bool negative = !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
  if (tensor.dtype() == DType::uint64 ? negative : !negative && bits > INT64_MAX) return false;
  std::memcpy(static_cast<std::byte*>(tensor.data()) + index * sizeof bits, &bits, sizeof bits);
  return true;
}

/// Whether a whole number that is written with a fraction or an exponent is too large for the type. Comparing
/// after writing does not find this: writing clamps, and the largest number of the type rounds up as a
/// double.
bool is_beyond(DType type, double number) {
  return (type == DType::int64 && number >= 0x1p63) || (type == DType::uint64 && number >= 0x1p64);
}

Result<void> set_element(Tensor& tensor, std::size_t index, const Json& value) {
  const auto at = static_cast<std::int64_t>(index);
  const auto cannot_hold = [&] {
    return fail(Code::invalid_argument, "element {} is {}, which {} cannot hold", index, value.dump(),
                dtype_name(tensor.dtype()));
  };
  if ((tensor.dtype() == DType::int64 || tensor.dtype() == DType::uint64) && value.is_number_integer()) {
    if (!set_whole(tensor, index, value)) return cannot_hold();
    return {};
  }
  const auto number = number_in(value);
  if (!number) return fail(Code::invalid_argument, "element {} is {}, not a number", index, shown(value));
  if (!is_floating(tensor.dtype())) {
    write_element(tensor.data(), tensor.dtype(), at, *number);
    if (is_beyond(tensor.dtype(), *number) || read_element(tensor.data(), tensor.dtype(), at) != *number)
      return cannot_hold();
    return {};
  }
  write_element(tensor.data(), tensor.dtype(), at, *number);
  return {};
}

Result<Tensor> read_json_tensor(const Json& value, std::optional<DType> known) {
  const Json* data = &value;
  std::vector<std::int64_t> shape;
  bool shape_given = false;
  if (value.is_object()) {
    if (!value.contains("data")) return fail(Code::invalid_argument, "it has no \"data\"");
    data = &value.at("data");
    if (value.contains("dtype")) {
      if (!value.at("dtype").is_string()) return fail(Code::invalid_argument, "its \"dtype\" is not a text");
      HEADRACE_CLI_TRY(named, dtype_from_name(value.at("dtype").get<std::string>()));
      known = named;
    }
    if (value.contains("shape")) {
      shape_given = true;
      if (!value.at("shape").is_array() || value.at("shape").size() > most_tensor_dimensions)
        return fail(Code::invalid_argument, "its \"shape\" is not a list of at most {} lengths",
                    most_tensor_dimensions);
      for (const Json& length : value.at("shape")) {
        if (!length.is_number_integer() || length.get<std::int64_t>() < 0)
          return fail(Code::invalid_argument, "its \"shape\" has {}, which is not a length", shown(length));
        shape.push_back(length.get<std::int64_t>());
      }
    }
  }
  std::vector<const Json*> elements;
  if (!flatten(*data, 0, elements) || (!shape_given && !take_shape(*data, 0, shape)))
    return fail(Code::invalid_argument, "its lists have different lengths, or are nested too deep");
  HEADRACE_CLI_TRY(tensor, Tensor::zeros(known.value_or(guess_type(elements)), Shape(shape)));
  if (static_cast<std::int64_t>(elements.size()) != tensor.shape().count())
    return fail(Code::invalid_argument, "it has {} elements, and shape {} needs {}", elements.size(),
                shape_text(tensor.shape()), tensor.shape().count());
  for (std::size_t i = 0; i < elements.size(); ++i) HEADRACE_CLI_CHECK(set_element(tensor, i, *elements[i]));
  return tensor;
}

Result<std::vector<NamedTensor>> read_json_file(const std::string& path, DTypeOf dtype_of, void* context) {
  HEADRACE_CLI_TRY(file, formats::MappedFile::open(path));
  const auto* const text = reinterpret_cast<const char*>(file.bytes().data());
  const Json whole = Json::parse(text, text + file.bytes().size(), nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object())
    return fail(Code::corrupt,
                "{} is not a JSON object of tensors by name, as in {{\"x\": [[1, 2], [3, 4]]}}", path);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, value] : whole.items()) {
    auto tensor = read_json_tensor(value, dtype_of != nullptr ? dtype_of(context, name) : std::nullopt);
    if (!tensor) return std::move(tensor).error().within(fmt::format("{}: tensor \"{}\"", path, name));
    tensors.push_back({name, std::move(*tensor)});
  }
  return tensors;
}

// --- writing

Result<std::vector<formats::TensorInfo>> infos_of(std::span<const NamedView> tensors) {
  std::vector<formats::TensorInfo> infos;
  for (const NamedView& tensor : tensors) {
    const auto row = std::find_if(types.begin(), types.end(),
                                  [&](const TypeRow& t) { return t.type == tensor.view.dtype; });
    formats::TensorInfo info{tensor.name, formats::element_type(row->file), {}, tensor.view.bytes()};
    info.shape.assign(tensor.view.shape.begin(), tensor.view.shape.end());
    infos.push_back(std::move(info));
  }
  return infos;
}

void append(std::string& file, const TensorView& view) {
  if (view.bytes() > 0) file.append(static_cast<const char*>(view.data), view.bytes());
}

Result<std::string> npz_bytes(std::span<const NamedView> tensors) {
  HEADRACE_CLI_TRY(infos, infos_of(tensors));
  HEADRACE_CLI_TRY(layout, formats::NpzLayout::plan(infos));
  std::string file(layout.file_bytes(), '\0');
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].view.bytes() > 0)
      std::memcpy(file.data() + layout.offsets()[i], tensors[i].view.data, tensors[i].view.bytes());
  layout.finish(std::as_writable_bytes(std::span(file)));
  return file;
}

Result<std::string> npy_bytes(std::span<const NamedView> tensors) {
  if (tensors.size() != 1)
    return fail(Code::invalid_argument, "an .npy file holds one tensor, and there are {}: write an .npz",
                tensors.size());
  HEADRACE_CLI_TRY(infos, infos_of(tensors));
  if (infos[0].type->npy.empty())
    return fail(Code::invalid_argument, "tensor \"{}\" is {}, which NumPy cannot hold: write a .safetensors",
                infos[0].name, infos[0].type->name);
  std::string file = formats::write_npy(infos[0]);
  append(file, tensors[0].view);
  return file;
}

Result<std::string> safetensors_bytes(std::span<const NamedView> tensors) {
  HEADRACE_CLI_TRY(infos, infos_of(tensors));
  HEADRACE_CLI_TRY(file, formats::write_safetensors(infos, {}));
  for (const NamedView& tensor : tensors) append(file, tensor.view);
  return file;
}

template <class Whole>
Whole whole_at(const TensorView& view, std::int64_t index) {
  Whole whole = 0;
  std::memcpy(&whole, static_cast<const std::byte*>(view.data) + index * 8, sizeof whole);
  return whole;
}

Json element_json(const TensorView& view, std::int64_t index) {
  if (view.dtype == DType::boolean) return read_element(view.data, view.dtype, index) != 0;
  if (view.dtype == DType::int64) return whole_at<std::int64_t>(view, index);
  if (view.dtype == DType::uint64) return whole_at<std::uint64_t>(view, index);
  const double value = read_element(view.data, view.dtype, index);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (!is_floating(view.dtype)) return static_cast<std::int64_t>(value);
  if (view.dtype == DType::float32)
    return Json::parse(
        fmt::format("{}", static_cast<float>(value)));  // the shortest text that reads back equal
  return value;
}

Result<std::string> json_bytes(std::span<const NamedView> tensors) {
  Json whole = Json::object();
  for (const NamedView& tensor : tensors) {
    if (is_complex(tensor.view.dtype))
      return fail(Code::invalid_argument,
                  "tensor \"{}\" is complex, which JSON cannot hold: write a .safetensors or .npz",
                  tensor.name);
    whole[tensor.name] = tensor_json(tensor.view);
  }
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Writes beside the path, then renames: a reader never sees half a file.
Result<void> write_file(const std::string& path, const std::string& bytes, IfTaken if_taken) {
  const std::string part = fmt::format("{}.part-{}", path, ::getpid());
  std::FILE* const file = std::fopen(part.c_str(), "wb");
  if (file == nullptr) return fail(Code::invalid_argument, "opening {} for writing: {}", part, system_text());
  bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  int error = errno;
  if (std::fclose(file) != 0 && written) written = false, error = errno;
  if (written && give_name(part, path, if_taken)) return {};
  if (written) error = errno;
  std::remove(part.c_str());
  if (written && error == EEXIST) return name_taken(path);
  return fail(error == ENOSPC ? Code::exhausted : Code::invalid_argument, "writing {}, {} bytes: {}", path,
              bytes.size(), system_text(error));
}

}  // namespace

Json tensor_json(const TensorView& view) {
  Json data = Json::array();
  for (std::int64_t i = 0; i < view.shape.count(); ++i) data.push_back(element_json(view, i));
  Json shape = Json::array();
  for (const std::int64_t length : view.shape) shape.push_back(length);
  return {{"dtype", dtype_name(view.dtype)}, {"shape", shape}, {"data", data}};
}

Result<std::vector<NamedTensor>> read_tensors(const std::string& path, DTypeOf dtype_of, void* context) {
  if (path.ends_with(".npy")) return read_npy_file(path);
  if (path.ends_with(".json")) return read_json_file(path, dtype_of, context);
  if (!path.ends_with(".npz") && !path.ends_with(".safetensors"))
    return fail(Code::invalid_argument,
                "{}: the name must end in .npy, .npz, .safetensors or .json, which tells the format", path);
  HEADRACE_CLI_TRY(file, formats::TensorFile::open(path));
  std::vector<NamedTensor> tensors;
  for (const formats::TensorFile::Tensor& one : file.tensors()) {
    auto tensor = tensor_of(one.info, one.bytes);
    if (!tensor) return std::move(tensor).error().within(path);
    tensors.push_back({one.info.name, std::move(*tensor)});
  }
  return tensors;
}

Result<void> write_tensors(const std::string& path, std::span<const NamedView> tensors, IfTaken if_taken) {
  const auto bytes = [&]() -> Result<std::string> {
    if (path.ends_with(".npy")) return npy_bytes(tensors);
    if (path.ends_with(".npz")) return npz_bytes(tensors);
    if (path.ends_with(".safetensors")) return safetensors_bytes(tensors);
    if (path.ends_with(".json")) return json_bytes(tensors);
    return fail(Code::invalid_argument,
                "the name must end in .npy, .npz, .safetensors or .json, which tells the format");
  }();
  if (!bytes) return Error(bytes.error()).within(path);
  return write_file(path, *bytes, if_taken);
}

}  // namespace headrace::cli
