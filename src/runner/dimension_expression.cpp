// SPDX-License-Identifier: Apache-2.0
#include "runner/dimension_expression.hpp"

#include <charconv>

namespace headrace {
namespace {

using Value = std::optional<std::int64_t>;

constexpr int most_depth = 64;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(std::string_view text, const std::function<Value(std::string_view)>& value_of)
      : rest_(text), value_of_(value_of) {}

  Value whole() {
    const Value value = sum();
    skip();
    return rest_.empty() ? value : std::nullopt;
  }

 private:
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool take(std::string_view sign) {
    skip();
    if (!rest_.starts_with(sign)) return false;
    rest_.remove_prefix(sign.size());
    return true;
  }

  Value sum() {
    Value left = product();
    while (left) {
      std::int64_t result = 0;
      const bool plus = take("+");
      if (!plus && !take("-")) break;
      const Value right = product();
      if (!right || (plus ? __builtin_add_overflow(*left, *right, &result)
                          : __builtin_sub_overflow(*left, *right, &result)))
        return std::nullopt;
      left = result;
    }
    return left;
  }

  Value product() {
    Value left = factor();
    while (left) {
      if (take("//")) {
        const Value right = factor();
        if (!right || *right <= 0 || *left < 0)
          return std::nullopt;  // a length is not negative: Python's rounding of negatives is not needed
        left = *left / *right;
      } else if (take("*")) {
        const Value right = factor();
        std::int64_t result = 0;
        if (!right || __builtin_mul_overflow(*left, *right, &result)) return std::nullopt;
        left = result;
      } else {
        break;
      }
    }
    return left;
  }

  Value factor() {
    if (++depth_ > most_depth) return std::nullopt;
    if (take("(")) {
      const Value value = sum();
      return value && take(")") ? value : std::nullopt;
    }
    if (take("-")) {
      const Value value = factor();
      return value && *value != INT64_MIN ? Value(-*value) : std::nullopt;
    }
    skip();
    if (rest_.empty()) return std::nullopt;
    if (is_digit(rest_.front())) return number();
    if (!is_letter(rest_.front())) return std::nullopt;
    std::size_t end = 1;
    while (end < rest_.size() && (is_letter(rest_[end]) || is_digit(rest_[end]))) ++end;
    const std::string_view name = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return value_of_(name);
  }

  Value number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string_view rest_;
  const std::function<Value(std::string_view)>& value_of_;
  int depth_ = 0;
};

}  // namespace

std::optional<std::int64_t> evaluate_dimension(std::string_view expression,
                                               const std::function<Value(std::string_view)>& value_of) {
  return Parser(expression, value_of).whole();
}

}  // namespace headrace
