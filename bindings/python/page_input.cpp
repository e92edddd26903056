// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/page_input.hpp"

#include "bindings/python/convert.hpp"
#include "bindings/python/memory_handles.hpp"

#include <limits>
#include <numeric>
#include <utility>

namespace headrace::python {
namespace {

constexpr const char* page_forms =
    "a page is a tuple (address, length) or (region, offset, length), where region is a Region, a Memory or "
    "an id; or a whole Region or array";

bool is_row(nb::handle object) { return PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0; }

/// A new reference to element i of a tuple or list.
nb::object element(nb::handle row, Py_ssize_t i) {
  return PyTuple_Check(row.ptr()) != 0 ? nb::borrow(PyTuple_GetItem(row.ptr(), i))
                                       : nb::borrow(PyList_GetItem(row.ptr(), i));
}

Py_ssize_t length(nb::handle row) {
  return PyTuple_Check(row.ptr()) != 0 ? PyTuple_Size(row.ptr()) : PyList_Size(row.ptr());
}

/// Whether an array is taken as a table of pages: two dimensions of 64-bit integers, or rows of 2 or 3
/// elements. Other arrays are memory.
bool is_table(const ArrayView& view) {
  if (view.shape.size() != 2) return false;
  const bool is_wide_integer = view.element != ArrayView::Element::other && view.element_bytes == 8;
  return is_wide_integer || view.shape[1] == 2 || view.shape[1] == 3;
}

PageInput from_table(std::shared_ptr<ArrayView> table) {
  const std::string hint = ". To pass the array's own memory as one page, put it in a list: [array]";
  if (table->shape[1] != 2 && table->shape[1] != 3)
    raise_invalid(
        "a table of pages has two columns (address, length) or three (region, offset, length); this is a " +
        table->described() + ": leave out the other columns" + hint);
  if (table->element == ArrayView::Element::other || table->element_bytes != 8)
    raise_invalid("a table of pages is uint64 or int64; this is a " + table->described() + ": convert it" +
                  hint);
  if (!table->is_c_contiguous())
    raise_invalid("a table of pages is contiguous; this " + table->described() +
                  " is not: copy it (numpy.ascontiguousarray)" + hint);
  if (table->kind != MemoryKind::dram)
    raise_invalid("a table of pages must be in host memory; this one is on a GPU: copy it to the host");
  PageInput input;
  const auto rows = static_cast<std::size_t>(table->shape[0]);
  if (table->shape[1] == 2) {
    input.pages = std::span(reinterpret_cast<const AddressPage*>(table->data), rows);
  } else {
    input.pages = std::span(reinterpret_cast<const Page*>(table->data), rows);
  }
  input.held = std::move(table);
  return input;
}

/// The id of the region in a row of three. It may be an id of a peer's region, so it is not looked up here.
std::uint64_t region_number(nb::handle region, std::uint64_t page) {
  if (nb::isinstance<PyRegion>(region)) return nb::cast<const PyRegion&>(region).region.id.value;
  if (nb::isinstance<PyMemory>(region)) return nb::cast<const PyMemory&>(region).region.region.id.value;
  if (PyLong_Check(region.ptr()) == 0 && PyIndex_Check(region.ptr()) == 0)
    raise_invalid("the region of page " + std::to_string(page) + " is " + shown(region) +
                      ": give a Region, a Memory, or a region's id",
                  page);
  return to_u64(region, "the region", page);
}

AddressPage whole_of(const ArrayView& view, std::uint64_t page) {
  if (!view.is_dense())
    raise_invalid("page " + std::to_string(page) + ", a " + view.described() +
                      ", has gaps: give its contiguous runs as pages, or a copy",
                  page);
  return {reinterpret_cast<std::uint64_t>(view.data), view.length_bytes};
}

/// Collects pages from tuples, regions and arrays. All must be by address, or all by region.
class PageCollector {
 public:
  explicit PageCollector(std::size_t count) : count_(count) {}

  void add(nb::handle item) {
    const std::uint64_t i = at_++;
    if (is_row(item)) {
      add_row(item, i);
    } else if (nb::isinstance<PyRegion>(item)) {
      const Region& region = nb::cast<const PyRegion&>(item).region;
      pages().push_back({region.id.value, 0, region.length_bytes});
    } else if (nb::isinstance<UniformPages>(item)) {
      raise_invalid("UniformPages is a list of pages, not a page: prepare it alone", i);
    } else if (nb::isinstance<PyRegionPages>(item)) {
      raise_invalid("RegionPages is a list of pages, not a page: prepare it alone", i);
    } else if (const auto view = ArrayView::open(item)) {
      addresses().push_back(whole_of(*view, i));
    } else {
      raise_invalid("page " + std::to_string(i) + " is " + shown(item) + ": " + page_forms, i);
    }
  }

  PageInput finish() && {
    PageInput input;
    input.own_addresses = std::move(addresses_);
    input.own_pages = std::move(pages_);
    if (!input.own_pages.empty()) {
      input.pages = std::span<const Page>(input.own_pages);
    } else {
      input.pages = std::span<const AddressPage>(input.own_addresses);
    }
    return input;
  }

 private:
  void add_row(nb::handle row, std::uint64_t i) {
    const Py_ssize_t columns = length(row);
    if (columns == 2) {
      if (const nb::object first = element(row, 0);
          nb::isinstance<PyRegion>(first) || nb::isinstance<PyMemory>(first))
        raise_invalid("page " + std::to_string(i) + " is " + shown(row) +
                          ": a page of a region is (region, offset, length)",
                      i);
      addresses().push_back(
          {to_u64(element(row, 0), "the address", i), to_u64(element(row, 1), "the length", i)});
    } else if (columns == 3) {
      pages().push_back({region_number(element(row, 0), i), to_u64(element(row, 1), "the offset", i),
                         to_u64(element(row, 2), "the length", i)});
    } else {
      raise_invalid("page " + std::to_string(i) + " is " + shown(row) + ", with " + std::to_string(columns) +
                        " elements: " + page_forms,
                    i);
    }
  }

  std::vector<AddressPage>& addresses() {
    if (!pages_.empty()) mixed();
    if (addresses_.empty()) addresses_.reserve(count_);
    return addresses_;
  }
  std::vector<Page>& pages() {
    if (!addresses_.empty()) mixed();
    if (pages_.empty()) pages_.reserve(count_);
    return pages_;
  }
  [[noreturn]] void mixed() const {
    raise_invalid("page " + std::to_string(at_ - 1) +
                      " has another kind than the pages before it: a list has pages by address ((address, "
                      "length), arrays) or by region ((region, offset, length), Region), not both",
                  at_ - 1);
  }

  std::size_t count_;
  std::uint64_t at_ = 0;
  std::vector<AddressPage> addresses_;
  std::vector<Page> pages_;
};

std::shared_ptr<ArrayView> open_column(nb::handle object, const char* what) {
  auto view = is_row(object) ? nullptr : ArrayView::open(object);
  if (view == nullptr)
    raise_invalid(std::string(what) + " are " + shown(object) +
                  ": give a one-dimensional array of uint64 or int64");
  const std::string found = std::string(what) + " are a " + view->described();
  if (view->element == ArrayView::Element::other || view->element_bytes != 8)
    raise_invalid(found + ": give uint64 or int64");
  if (view->shape.size() != 1) raise_invalid(found + ": give one dimension; of a table give one column");
  if (view->kind != MemoryKind::dram) raise_invalid(found + " on a GPU: copy it to the host");
  return view;
}

/// Whether the object is an int or converts to one. Arrays have __index__ too, but most raise in it: objects
/// with __len__ do not count.
bool is_number(nb::handle object) {
  if (PyLong_Check(object.ptr()) != 0) return true;
  return PyIndex_Check(object.ptr()) != 0 && !nb::hasattr(object, "__len__");
}

PageColumn column_of(const ArrayView& view) { return {view.data, view.stride_bytes(0)}; }

}  // namespace

PyRegionPages::PyRegionPages(nb::handle region, nb::handle offsets, nb::handle lengths,
                             std::uint64_t origin_bytes)
    : offsets_(open_column(offsets, "offsets")) {
  pages_ = {to_region_id(region),
            column_of(*offsets_),
            {},
            static_cast<std::uint64_t>(offsets_->count()),
            origin_bytes};
  if (is_number(lengths)) {
    common_length_ = to_u64(lengths, "the length of all pages", no_page);
    pages_.lengths = {&common_length_, 0};
    return;
  }
  lengths_ = open_column(lengths, "lengths");
  if (lengths_->count() != offsets_->count())
    raise_invalid(std::to_string(offsets_->count()) + " offsets and " + std::to_string(lengths_->count()) +
                  " lengths: give one of each for every page");
  pages_.lengths = column_of(*lengths_);
}

PyRegionPages::~PyRegionPages() {
  offsets_.reset();
  lengths_.reset();
  free_laid_aside();
}

PageInput to_pages(nb::handle object) {
  if (nb::isinstance<UniformPages>(object)) {
    PageInput input;
    input.pages = nb::cast<UniformPages>(object);
    return input;
  }
  if (nb::isinstance<PyRegionPages>(object)) {
    PageInput input;
    input.pages = nb::cast<const PyRegionPages&>(object).pages();
    return input;
  }
  if (nb::isinstance<PyRegion>(object)) {
    PageCollector one(1);
    one.add(object);
    return std::move(one).finish();
  }
  if (is_row(object)) {
    const Py_ssize_t count = length(object);
    PageCollector pages(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count && i < length(object); ++i) pages.add(element(object, i));
    return std::move(pages).finish();
  }
  if (auto view = ArrayView::open(object)) {
    if (is_table(*view)) return from_table(std::move(view));
    PageCollector one(1);
    one.add(object);
    return std::move(one).finish();
  }
  raise_invalid(
      "pages are " + shown(object) +
      ": give a list of pages, an N x 2 (address, length) or N x 3 (region, offset, length) array of uint64, "
      "UniformPages, RegionPages, a Region or an array");
}

void IndexInput::widen() {
  if (std::holds_alternative<std::span<const std::int64_t>>(indices)) return;
  std::visit([&](auto narrow) { own.assign(narrow.begin(), narrow.end()); }, indices);
  indices = std::span<const std::int64_t>(own);
  held.reset();
}

std::span<const std::uint32_t> IndexInput::narrow(const char* what, std::vector<std::uint32_t>& room) const {
  if (const auto* const fitting = std::get_if<std::span<const std::uint32_t>>(&indices)) return *fitting;
  std::visit(
      [&](auto wide) {
        room.reserve(wide.size() + 1);  // so that an empty list has an address too
        for (const auto number : wide) {
          if (!std::in_range<std::uint32_t>(number))
            raise_invalid(
                std::string(what) + " holds " + std::to_string(number) + ", which is not a page number",
                room.size());
          room.push_back(static_cast<std::uint32_t>(number));
        }
      },
      indices);
  return room;
}

IndexInput all_indices(std::uint64_t count) {
  IndexInput input;
  input.own.resize(count);
  std::iota(input.own.begin(), input.own.end(), std::int64_t{0});
  input.indices = std::span<const std::int64_t>(input.own);
  return input;
}

namespace {

template <class T>
std::vector<std::int64_t> widened(const ArrayView& view) {
  const auto* first = reinterpret_cast<const T*>(view.data);
  return {first, first + view.count()};
}

IndexInput from_array(std::shared_ptr<ArrayView> view, const char* what) {
  const std::string found = std::string(what) + " is a " + view->described();
  if (view->element == ArrayView::Element::other) raise_invalid(found + ": indices are integers");
  if (view->shape.size() != 1) raise_invalid(found + ": indices have one dimension");
  if (!view->is_c_contiguous()) raise_invalid(found + " with gaps: copy it (numpy.ascontiguousarray)");
  if (view->kind != MemoryKind::dram) raise_invalid(found + " on a GPU: copy it to the host");
  const auto count = static_cast<std::size_t>(view->count());
  const bool is_signed = view->element == ArrayView::Element::signed_integer;
  IndexInput input;
  switch (view->element_bytes) {
    case 8:  // a uint64 of 2^63 or more becomes negative and is refused later
      input.indices = std::span(reinterpret_cast<const std::int64_t*>(view->data), count);
      input.held = std::move(view);
      return input;
    case 4:
      if (is_signed) {
        input.indices = std::span(reinterpret_cast<const std::int32_t*>(view->data), count);
      } else {
        input.indices = std::span(reinterpret_cast<const std::uint32_t*>(view->data), count);
      }
      input.held = std::move(view);
      return input;
    case 2:
      input.own = is_signed ? widened<std::int16_t>(*view) : widened<std::uint16_t>(*view);
      break;
    default:
      input.own = is_signed ? widened<std::int8_t>(*view) : widened<std::uint8_t>(*view);
      break;
  }
  input.indices = std::span<const std::int64_t>(input.own);
  return input;
}

}  // namespace

IndexInput to_indices(nb::handle object, const char* what) {
  // bytes are a buffer of integers too, but are not accepted as indices.
  if (!is_row(object) && PyBytes_Check(object.ptr()) == 0) {
    if (auto view = ArrayView::open(object)) return from_array(std::move(view), what);
  }
  const nb::object items =
      is_row(object) ? nb::borrow(object) : nb::steal(PySequence_List(object.ptr()));  // for example a range
  if (!items.is_valid() || PyBytes_Check(object.ptr()) != 0 || PyUnicode_Check(object.ptr()) != 0) {
    PyErr_Clear();
    raise_invalid(std::string(what) + " is " + shown(object) + ": give an array or a list of integers");
  }
  const Py_ssize_t count = length(items);
  IndexInput input;
  input.own.resize(static_cast<std::size_t>(count));
  const bool in_tuple = PyTuple_Check(items.ptr()) != 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = in_tuple ? PyTuple_GetItem(items.ptr(), i) : PyList_GetItem(items.ptr(), i);
    const long long index = item != nullptr ? PyLong_AsLongLong(item) : -1;
    if (index == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      raise_invalid(std::string(what) + "[" + std::to_string(i) + "] is " +
                        (item != nullptr ? shown(item) : "gone") + ": give an int",
                    static_cast<std::uint64_t>(i));
    }
    input.own[static_cast<std::size_t>(i)] = index;
  }
  input.indices = std::span<const std::int64_t>(input.own);
  return input;
}

std::shared_ptr<ArrayView> to_gpu_indices(nb::handle object, const char* what) {
  auto view = ArrayView::open_on_gpu(object);
  if (view == nullptr) return nullptr;
  const std::string found = std::string(what) + " is a " + view->described() + " on a GPU";
  if (view->element == ArrayView::Element::other || view->element_bytes != 4)
    raise_invalid(found + ": page numbers on a GPU must be int32 or uint32");
  if (view->shape.size() != 1 || !view->is_c_contiguous())
    raise_invalid(found + ": page numbers on a GPU must have one dimension and no gaps");
  return view;
}

RegionId to_region_id(nb::handle object) {
  if (nb::isinstance<PyRegion>(object)) return nb::cast<const PyRegion&>(object).region.id;
  if (nb::isinstance<PyMemory>(object)) return nb::cast<const PyMemory&>(object).region.region.id;
  if (PyLong_Check(object.ptr()) == 0 && PyIndex_Check(object.ptr()) == 0)
    raise_invalid(shown(object) + " is not a region: give a Region, a Memory, or a region's id");
  const std::uint64_t id = to_u64(object, "the region id", no_page);
  if (id > std::numeric_limits<std::uint32_t>::max())
    raise(Error{Code::not_found, "there is no region " + std::to_string(id)});
  return RegionId{static_cast<std::uint32_t>(id)};
}

std::vector<RegionId> to_region_ids(nb::handle object) {
  if (!is_row(object)) return {to_region_id(object)};
  std::vector<RegionId> ids;
  for (Py_ssize_t i = 0; i < length(object); ++i) ids.push_back(to_region_id(element(object, i)));
  return ids;
}

}  // namespace headrace::python
