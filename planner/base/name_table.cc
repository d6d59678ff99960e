#include "base/name_table.h"

#include <bit>

namespace shardfit {

namespace {

std::size_t slots_for(std::size_t names) { return std::bit_ceil(2 * (names < 4 ? 4 : names)); }

}  // namespace

NameTable::NameTable(std::size_t expected) : slots_(slots_for(expected)) {}

void NameTable::reserve(std::size_t expected) {
  if (slots_for(expected) > slots_.size()) resize(slots_for(expected));
}

std::size_t NameTable::place_of(std::string_view name) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = std::hash<std::string_view>()(name) & mask;
  while (slots_[place].text && slots_[place].name() != name) place = (place + 1) & mask;
  return place;
}

void NameTable::resize(std::size_t slots) {
  std::vector<Slot> before(slots);
  before.swap(slots_);
  for (const Slot& slot : before) {
    if (slot.text) slots_[place_of(slot.name())] = slot;
  }
}

std::int32_t NameTable::add(std::string_view name, std::int32_t number) {
  if (2 * (size_ + 1) > slots_.size()) resize(2 * slots_.size());
  Slot& slot = slots_[place_of(name)];
  if (slot.text) return slot.number;
  slot = {name.data(), static_cast<std::uint32_t>(name.size()), number};
  ++size_;
  return number;
}

std::optional<std::int32_t> NameTable::find(std::string_view name) const {
  const Slot& slot = slots_[place_of(name)];
  if (!slot.text) return {};
  return slot.number;
}

std::vector<std::string_view> NameTable::names() const {
  std::vector<std::string_view> names;
  for (const Slot& slot : slots_) {
    if (slot.text) names.push_back(slot.name());
  }
  return names;
}

}  // namespace shardfit
