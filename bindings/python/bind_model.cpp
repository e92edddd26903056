// SPDX-License-Identifier: Apache-2.0
// <headrace/model.hpp>
#include <headrace/model.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/dlpack_capsule.hpp"
#include "bindings/python/dlpack_structs.hpp"
#include "bindings/python/interpreter.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/stream_input.hpp"
#include "bindings/python/tensor_handle.hpp"
#include "bindings/python/tensor_input.hpp"
#include "bindings/python/tensor_object.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::python {
namespace {

/// The format letter of module struct; null if the buffer protocol has none for the type.
const char* buffer_format(DType type) {
  switch (type) {
    case DType::float32:
      return "f";
    case DType::float64:
      return "d";
    case DType::float16:
      return "e";
    case DType::int8:
      return "b";
    case DType::int16:
      return "h";
    case DType::int32:
      return "i";
    case DType::int64:
      return "q";
    case DType::uint8:
      return "B";
    case DType::uint16:
      return "H";
    case DType::uint32:
      return "I";
    case DType::uint64:
      return "Q";
    case DType::boolean:
      return "?";
    case DType::complex64:
      return "Zf";
    case DType::complex128:
      return "Zd";
    default:
      return nullptr;
  }
}

int tensor_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto& output = *nb::inst_ptr<PyTensor>(self);
  const char* const format = buffer_format(output.tensor->dtype());
  if (format == nullptr || output.tensor->device().kind != Device::Kind::cpu) {
    PyErr_SetString(PyExc_BufferError,
                    format == nullptr
                        ? "the buffer protocol has no format for this dtype: use torch.from_dlpack"
                        : "the tensor is on a GPU: use torch.from_dlpack");
    return -1;
  }
  if (PyBuffer_FillInfo(view, self, output.tensor->data(), static_cast<Py_ssize_t>(output.tensor->bytes()), 0,
                        flags) != 0)
    return -1;
  view->itemsize = static_cast<Py_ssize_t>(element_bytes(output.tensor->dtype()));
  if ((flags & PyBUF_FORMAT) != 0) view->format = const_cast<char*>(format);
  if ((flags & PyBUF_ND) != 0) {
    view->ndim = static_cast<int>(output.tensor->shape().rank());
    view->shape = output.shape.data();
  }
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = output.strides_bytes.data();
  return 0;
}

PyType_Slot tensor_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&tensor_buffer)}, {0, nullptr}};

std::int32_t dlpack_device_type(const Tensor& tensor) {
  return tensor.device().kind == Device::Kind::cpu ? dl_cpu : dl_cuda;
}

/// Called before an export. If the importer reads on another stream than the run's, waits for the run.
void make_ready(PyTensor& self, const nb::kwargs& how) {
  if (!self.pending) return;
  // DLPack: None is the default stream; -1: the importer synchronizes itself; not given: unknown, so wait.
  std::intptr_t reader = 0;
  if (how.contains("stream")) {
    const nb::object stream = how["stream"];
    reader = stream.is_none() ? 1 : nb::cast<std::intptr_t>(stream);
  }
  if (reader == -1 || reader == static_cast<std::intptr_t>(dlpack_stream(self.pending->stream))) return;
  const Pending run = *self.pending;
  take(without_gil([&] { return run.model->wait(run.stream); }));
  self.pending.reset();
}

nb::object to_dlpack(PyTensor& self, const nb::kwargs& how) {
  make_ready(self, how);
  const Tensor& tensor = *self.tensor;
  return dlpack_capsule({.data = self.tensor->data(),
                         .dtype = tensor.dtype(),
                         .shape = tensor.shape(),
                         .device = {dlpack_device_type(tensor), tensor.device().index},
                         .owner = self.tensor},
                        how);
}

nb::tuple shape_tuple(const Shape& shape) {
  nb::list lengths;
  for (const std::int64_t length : shape) lengths.append(length);
  return nb::tuple(lengths);
}

nb::object from_json(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(to_str(text));
}

/// A model. Shared, so that close() does not free it during a call on another thread.
struct PyModel {
  std::shared_ptr<Model> model;  ///< null: closed
  std::string path;
  ExchangeCache exchange;

  [[nodiscard]] std::shared_ptr<Model> opened() const {
    if (!model) raise_invalid("the model of " + path + " is closed: open it again");
    return model;
  }
  void close() {
    std::shared_ptr<Model> last = std::exchange(model, nullptr);
    const WithoutGil scope;
    last.reset();
  }
};

PyModel open_model(const std::filesystem::path& path, const std::string& model_name,
                   const std::optional<Text>& device, std::size_t runners, int threads,
                   const std::optional<nb::dict>& options) {
  ModelOptions wanted;
  wanted.model_name = model_name;
  if (device) wanted.device = device->str();
  wanted.runners = runners;
  wanted.threads = threads;
  wanted.options = to_options(options);
  auto opened = without_gil([&] { return Model::open(path.string(), std::move(wanted)); });
  return {std::make_shared<Model>(take(std::move(opened))), path.string(), {}};
}

/// Returns the inputs. Raises if the model writes to one that is read-only.
std::vector<TensorInput> writable(const std::vector<TensorSpec>& specs, std::vector<TensorInput> inputs) {
  for (std::size_t i = 0; i < std::min(specs.size(), inputs.size()); ++i)
    if (specs[i].mutated && inputs[i].read_only())
      raise_invalid("input " + specs[i].name +
                    ": the model writes to it, but its memory is read-only: give a copy");
  return inputs;
}

/// The inputs of a run, in the model's order.
std::vector<TensorInput> gather(const Model& model, ExchangeCache& exchange, const nb::args& positional,
                                const nb::kwargs& named, std::optional<void*> stream) {
  const std::vector<TensorSpec>& specs = model.info().inputs;
  std::vector<TensorInput> inputs;
  inputs.reserve(std::max(specs.size(), positional.size()));
  const auto role_of = [&](std::size_t i) {
    return TensorRole{"input", i < specs.size() ? specs[i].name.c_str() : "beyond the last", "models"};
  };
  for (std::size_t i = 0; i < positional.size(); ++i)
    inputs.emplace_back(nb::handle(positional[i]).ptr(), role_of(i), exchange, stream);
  if (nb::len(nb::handle(named)) == 0) return writable(specs, std::move(inputs));
  std::size_t used = 0;
  for (std::size_t i = positional.size(); i < specs.size(); ++i) {
    const nb::str key = to_str(specs[i].name);
    if (!named.contains(key)) {
      inputs.emplace_back(Py_None, role_of(i), exchange);
      continue;
    }
    inputs.emplace_back(nb::object(named[key]).ptr(), role_of(i), exchange, stream);
    ++used;
  }
  if (used == named.size()) return writable(specs, std::move(inputs));
  std::string names;
  for (const TensorSpec& spec : specs) names += (names.empty() ? "" : ", ") + spec.name;
  raise_invalid("a named input is not one of the model's, or was given by position too: the model takes " +
                (names.empty() ? "unknown names" : names));
}

/// Removes `stream` from the named arguments and returns it, unless the model has an input of that name.
std::optional<void*> take_stream(const Model& model, nb::kwargs& named) {
  if (nb::len(nb::handle(named)) == 0 || !named.contains("stream") || model.input_index("stream"))
    return std::nullopt;
  const nb::object given = named["stream"];
  nb::del(named["stream"]);
  return given.is_none() ? std::nullopt : std::optional(to_stream(given));
}

nb::list run_model(PyModel& self, const nb::args& positional, nb::kwargs named) {
  const std::shared_ptr<Model> model = self.opened();  // kept: code of an input may close the model
  const std::optional<void*> stream = take_stream(*model, named);
  const std::vector<TensorInput> inputs = gather(*model, self.exchange, positional, named, stream);
  std::vector<TensorView> views;
  views.reserve(inputs.size());
  for (const TensorInput& input : inputs) views.push_back(input.view());
  const RunOptions options{stream, !stream.has_value()};
  auto outputs = take(without_gil([&] { return model->run(views, options); }));
  std::optional<Pending> pending;
  if (stream) pending = Pending{model, *stream};
  nb::list results;
  for (Tensor& output : outputs) results.append(nb::cast(PyTensor(std::move(output), pending)));
  return results;
}

nb::list list_constants(const PyModel& self) {
  const std::shared_ptr<Model> model = self.opened();
  const auto constants = take(without_gil([&] { return model->constants(); }));
  nb::list list;
  for (const ConstantInfo& constant : constants) {
    nb::dict entry;
    entry["name"] = to_str(constant.name);
    entry["dtype"] = to_str(dtype_name(constant.dtype));
    entry["shape"] = shape_tuple(constant.shape);
    list.append(entry);
  }
  return list;
}

void replace_constants(PyModel& self, const nb::dict& values) {
  const std::shared_ptr<Model> model = self.opened();
  std::vector<TensorInput> inputs;
  inputs.reserve(values.size());
  std::map<std::string, TensorView> views;
  for (const auto& [key, value] : values) {
    const std::string name = to_text(key, "the name of a constant");
    inputs.emplace_back(value.ptr(), TensorRole{"input", name.c_str(), "models"}, self.exchange);
    views[name] = inputs.back().view();
  }
  take(without_gil([&] { return model->replace_constants(views); }));
}

nb::dict timing_dict(const PyModel& self) {
  const ModelTiming timing = self.opened()->timing();
  nb::dict dict;
  dict["load_ns"] = timing.load_ns;
  dict["unpack_ns"] = timing.unpack_ns;
  dict["unpacked"] = timing.unpacked;
  dict["runs"] = timing.run_ns.count;
  dict["run_mean_ns"] = timing.run_ns.mean();
  dict["run_p50_ns"] = timing.run_ns.percentile(50);
  dict["run_p90_ns"] = timing.run_ns.percentile(90);
  dict["run_p99_ns"] = timing.run_ns.percentile(99);
  return dict;
}

nb::dict memory_dict(const PyModel& self) {
  const std::shared_ptr<Model> model = self.opened();
  const ModelMemory memory = without_gil([&] { return model->memory(); });
  nb::dict dict;
  dict["package_bytes"] = memory.package_bytes;
  dict["constant_bytes"] = memory.constant_bytes;
  dict["process_bytes"] = memory.process_bytes;
  dict["device_bytes"] = memory.device_bytes;
  dict["device_peak_bytes"] = memory.device_peak_bytes;
  dict["device_used_bytes"] = memory.device_used_bytes;
  return dict;
}

constexpr const char* run_doc =
    "Runs the model once. Returns the list of its outputs.\n\n"
    "inputs, named: the inputs by position or by name: torch tensors, NumPy arrays, or other\n"
    "objects with the buffer protocol or DLPack; None leaves an optional input out. Every input is\n"
    "checked before the run. For a model on a GPU they must be on that GPU.\n"
    "stream: None: runs on torch's current stream, and returns when the outputs are ready. A\n"
    "torch.cuda.Stream, or the number of a CUDA stream: runs in the order of that stream and\n"
    "returns at once. Inputs must then stay in place until the stream has passed the run; outputs\n"
    "are ready in the stream's order, and torch.from_dlpack on another stream waits. If the model\n"
    "has an input of the name \"stream\", the argument is that input.\n"
    "Owns: inputs are read in place, and written in place if the model mutates them; outputs are\n"
    "new memory.\n"
    "Threads: any; the GIL is released. As many runs proceed at once as there are runners.\n"
    "Errors: InvalidArgument (an input does not fit, the text has both; a stream for a model on\n"
    "the CPU), BackendFailed (an error of torch, with its text).";

}  // namespace

nb::object tensor_object(Tensor tensor) { return nb::cast(PyTensor(std::move(tensor))); }

void bind_model(nb::module_& module) {
  nb::class_<PyTensor>(
      module, "Tensor", nb::type_slots(tensor_slots),
      "An output of a model, memory of a window, or what an operation gives to a backend in Python: "
      "row-major,\n"
      "with the buffer protocol and DLPack.\n\n"
      "Use numpy.asarray(tensor) or torch.from_dlpack(tensor).\n"
      "Owns: the memory of an output stays while this object or any array of it lives, also after the\n"
      "model is closed. The memory of an operation is its caller's.")
      .def_prop_ro(
          "shape", [](const PyTensor& self) { return shape_tuple(self.tensor->shape()); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The length of each dimension.")
      .def_prop_ro(
          "dtype", [](const PyTensor& self) { return to_str(dtype_name(self.tensor->dtype())); },
          "torch's name without \"torch.\": \"float32\".")
      .def_prop_ro(
          "device", [](const PyTensor& self) { return to_str(device_text(self.tensor->device())); },
          "\"cpu\" or \"cuda:0\".")
      .def(
          "numpy", [](nb::handle self) { return nb::module_::import_("numpy").attr("asarray")(self); },
          nb::sig("def numpy(self) -> numpy.ndarray"),
          "The tensor as a NumPy array, without a copy; imports NumPy.")
      .def("__dlpack__", &to_dlpack, nb::sig(dlpack_signature), dlpack_doc)
      .def(
          "__dlpack_device__",
          [](const PyTensor& self) {
            return nb::make_tuple(dlpack_device_type(*self.tensor), self.tensor->device().index);
          },
          nb::sig(dlpack_device_signature), dlpack_device_doc)
      .def("__repr__",
           [](const PyTensor& self) {
             return nb::str("Tensor({} {}, {})")
                 .format(to_str(dtype_name(self.tensor->dtype())), to_str(shape_text(self.tensor->shape())),
                         to_str(device_text(self.tensor->device())));
           })
      .def("__reduce__", refuse_pickle("a Tensor cannot be pickled: send numpy.asarray(tensor)"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PyModel>(
      module, "Model",
      "An open model that AOTInductor compiled.\n\n"
      "It runs without Python; torch's libraries are loaded, but torch is not imported.\n"
      "Owns: close(), the end of a with block, or the last reference frees the model; outputs stay.\n"
      "Threads: any.")
      .def(
          "__init__",
          [](PyModel* self, const std::filesystem::path& path, const std::string& model_name,
             const std::optional<Text>& device, std::size_t runners, int threads,
             const std::optional<nb::dict>& options) {
            new (self) PyModel(open_model(path, model_name, device, runners, threads, options));
          },
          nb::arg("path"), nb::kw_only(), nb::arg("model_name") = "model", nb::arg("device") = nb::none(),
          nb::arg("runners") = 1, nb::arg("threads") = 0, nb::arg("options") = nb::none(),
          nb::sig("def __init__(self, path: str | os.PathLike[str], *, model_name: str = 'model', device: "
                  "str | None = None, runners: int = 1, threads: int = 0, options: dict[str, object] | None "
                  "= None) -> None"),
          "Checks a package for this machine, unpacks it into the cache and loads it.\n\n"
          "path: the .pt2 file, or the folder that it was unpacked to.\n"
          "model_name: the model of the package.\n"
          "device: \"cpu\", \"cuda\", \"cuda:1\"; None: the device that the package was made for.\n"
          "runners: how many runs can proceed at once.\n"
          "threads: threads of torch inside one operation; 0: torch's own number.\n"
          "Threads: the GIL is released.\n"
          "Errors: NotFound, Corrupt (not a package, or damaged), InvalidArgument (no model of that\n"
          "name), NotSupported (no torch, or made for another torch, CPU or GPU), BackendFailed (an\n"
          "error of torch, with its text).")
      .def("run", &run_model,
           nb::sig("def run(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]"),
           run_doc)
      .def("__call__", &run_model,
           nb::sig(
               "def __call__(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]"),
           "Does the same as run().")
      .def_prop_ro(
          "info", [](const PyModel& self) { return from_json(model_info_json(self.opened()->info())); },
          nb::sig("def info(self) -> dict[str, typing.Any]"),
          "The description of the package, as `headrace inspect --json` prints it.")
      .def_static(
          "inspect",
          [](const std::filesystem::path& path, const std::string& model_name) {
            const auto info = take(without_gil([&] { return Model::inspect(path.string(), model_name); }));
            return from_json(model_info_json(info));
          },
          nb::arg("path"), nb::arg("model_name") = "model",
          nb::sig("def inspect(path: str | os.PathLike[str], model_name: str = 'model') -> dict[str, "
                  "typing.Any]"),
          "The description of a package, without opening it; needs no torch.\n\n"
          "Errors: NotFound, Corrupt, InvalidArgument.")
      .def("constants", &list_constants, nb::sig("def constants(self) -> list[dict[str, typing.Any]]"),
           "Weights and buffers: name, dtype, shape. Constants that the compiler folded are not listed.")
      .def("replace_constants", &replace_constants, nb::arg("values"),
           nb::sig("def replace_constants(self, values: dict[str, object]) -> None"),
           "Replaces the values of constants. Waits for runs in progress.\n\n"
           "values: tensors by the name of the constant.\n"
           "Errors: InvalidArgument (no such constant, another dtype or shape; nothing is changed).")
      .def("timing", &timing_dict, nb::sig("def timing(self) -> dict[str, typing.Any]"),
           "The times of loading and running, in nanoseconds.")
      .def("memory", &memory_dict, nb::sig("def memory(self) -> dict[str, int]"),
           "The memory of package, constants, process and GPU, in bytes.\n\n"
           "Of the GPU: the memory that torch holds in this process, its maximum, and the memory that all\n"
           "processes use.")
      .def_prop_ro(
          "closed", [](const PyModel& self) { return self.model == nullptr; }, "Whether close() was called.")
      .def("close", &PyModel::close,
           "Frees the model; later calls raise InvalidArgument. May be called again.\n\n"
           "Threads: runs in other threads end first; the last of them frees the model.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Model"))
      .def(
          "__exit__", [](PyModel& self, nb::handle, nb::handle, nb::handle) { self.close(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"))
      .def("__repr__",
           [](const PyModel& self) {
             return nb::str("Model({!r}, {})")
                 .format(to_str(self.path),
                         self.model ? to_str(device_text(self.model->info().device)) : nb::str("closed"));
           })
      .def("__reduce__", refuse_pickle("a Model cannot be pickled: open the package in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
