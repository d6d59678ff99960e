#pragma once
// A JSON writer with keys and nesting as calls and scopes.

#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <cstdint>
#include <string>

namespace shardfit::calibrate {

class Json {
 public:
  Json() : writer_(buffer_) { writer_.SetIndent(' ', 2); }

  template <class Body>
  void object(Body body) {
    writer_.StartObject();
    body();
    writer_.EndObject();
  }
  template <class Body>
  void object(const char* key, Body body) {
    writer_.Key(key);
    object(body);
  }
  template <class List, class Each>
  void array(const char* key, const List& list, Each each) {
    writer_.Key(key);
    writer_.StartArray();
    for (const auto& item : list) each(item);
    writer_.EndArray();
  }
  void text(const std::string& value) {
    writer_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }
  void text(const char* key, const std::string& value) {
    writer_.Key(key);
    text(value);
  }
  void number(const char* key, std::int64_t value) {
    writer_.Key(key);
    writer_.Int64(value);
  }
  void real(double value) { writer_.Double(value); }
  void real(const char* key, double value) {
    writer_.Key(key);
    real(value);
  }
  void boolean(const char* key, bool value) {
    writer_.Key(key);
    writer_.Bool(value);
  }
  std::string result() const { return std::string(buffer_.GetString()) + "\n"; }

 private:
  rapidjson::StringBuffer buffer_;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> writer_;
};

}  // namespace shardfit::calibrate
